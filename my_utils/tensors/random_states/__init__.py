"""Saves and restores the random states of a run."""
