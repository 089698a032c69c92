"""Stage times on their way to other systems."""
