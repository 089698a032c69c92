"""Capture windows across the workers of a driver."""
