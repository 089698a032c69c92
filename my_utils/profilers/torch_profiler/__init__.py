"""torch's profiler: around blocks, steps and decorated functions."""
