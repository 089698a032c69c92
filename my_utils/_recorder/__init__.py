"""Recordings of forward passes: what hooks note of the calls, and the file of it."""
