"""Hosts of one run that share no disk."""
