"""Makes sequences divisible by the number of ranks."""
