"""The C part of my_utils."""

class FormatError(ValueError):
    """A file is not what it should be: foreign, cut, broken, or written by a newer version."""
