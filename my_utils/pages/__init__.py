"""What the pages of `report` and `diff` share: the layout, the style, the script and the tables."""
