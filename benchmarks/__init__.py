"""Benchmarks: one module a claim, each against its peers in one run."""
