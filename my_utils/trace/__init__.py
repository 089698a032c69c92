"""Converts profile CSVs to traces and pictures."""
