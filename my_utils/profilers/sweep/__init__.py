"""Sweeps over shapes: measures points, and returns a table of all."""
