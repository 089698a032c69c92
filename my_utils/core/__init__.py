"""Helpers for all packages: arguments, files, ranks, tables, warnings."""
