"""Random states of a run, saved and put back."""
