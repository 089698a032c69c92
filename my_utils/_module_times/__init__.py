"""Which modules of a model are timed, and what that costs and counts."""
