"""Windows of torch's profiler and of nsys, memory, modules, and modes that see every operator."""
