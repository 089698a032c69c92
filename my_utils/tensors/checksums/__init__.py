"""Checksums that travel with a batch."""
