"""Capture on demand: requests to a running job, their windows and responses."""
