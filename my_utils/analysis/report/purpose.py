"""The name under which messages say that a package is missing."""

PURPOSE = "my_utils report"
