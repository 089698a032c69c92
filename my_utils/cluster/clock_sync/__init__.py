"""Measures clock differences between hosts: exchanges, estimates, and all ranks of a job."""
