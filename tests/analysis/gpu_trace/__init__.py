"""The ledger of a device by a trace of torch.profiler."""
