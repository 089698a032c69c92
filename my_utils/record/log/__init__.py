"""The text log of a run, and the outputs of its rows and files."""
