"""The report of one process's stages: its rows, figures and text."""
