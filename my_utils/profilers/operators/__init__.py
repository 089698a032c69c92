"""Finds the operator that is wrong: compared with the CPU, or the first to return a NaN.

    from my_utils.compare_tool import CompareWithCPU, NanInfTracker, open_module_tracker

    open_module_tracker(model)                # the log says in which module
    with CompareWithCPU() as compare:         # or NanInfTracker()
        for batch in loader:
            train_step(batch)
            compare.step()

The tools see every operator that torch's dispatcher does, in the forward pass, the backward pass
and the optimizer, on any device. Search the log for `[ERROR]` (fails the comparison) and
`[WARNING]` (NaN or Inf).

Under torch.compile they see what its backend runs as operators: all of them with the backend
"aot_eager"; kernels that a backend made itself are not seen, which is said once.
"""
