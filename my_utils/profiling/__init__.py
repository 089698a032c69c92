"""Capture windows, and the profilers that they open."""
