"""The performance tracker: sources, series, CSV and plot."""
