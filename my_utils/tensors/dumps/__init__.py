"""Writes objects with their tensors to disk and loads them, without pickle where possible."""
