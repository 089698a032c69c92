"""Tells somebody when a run gets into trouble, and when it is out of it again."""
