"""Times, FLOPs and memory of the modules of a model."""
