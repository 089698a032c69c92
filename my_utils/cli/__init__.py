"""The command `my_utils`; `python -m my_utils` is the same."""
