"""Where the time of a GPU goes, by one trace of torch.profiler."""
