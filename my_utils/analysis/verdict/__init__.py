"""Finds what bounds a run: the rank, stage or host where it loses time."""
