"""Reads the files that the processes of a run keep in its log directory."""
