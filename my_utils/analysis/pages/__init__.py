"""Common parts of the pages of `report` and `diff`: layout, style, script and tables."""
