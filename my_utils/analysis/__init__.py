"""From the rows of a run to findings, and from findings to text, pages, tables and JSON."""
