"""Modes that see every operator: compare it, look for NaNs, record it."""
