"""Times of functions, gathered over ranks."""
