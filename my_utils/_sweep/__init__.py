"""Sweeps over shapes: how a point is measured, and the table of all."""
