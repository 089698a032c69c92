"""What every package may use: arguments, files, ranks, tables, warnings."""
