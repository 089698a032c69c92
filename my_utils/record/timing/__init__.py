"""Times of functions and blocks by name, on one rank or gathered from all."""
