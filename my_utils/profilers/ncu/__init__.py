"""Results of Nsight Compute, by kernel."""
