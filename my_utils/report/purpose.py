"""The name under which messages say that a package is missing."""

__all__ = ["PURPOSE"]

PURPOSE = "my_utils.report"
