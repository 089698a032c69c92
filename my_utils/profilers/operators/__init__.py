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

from __future__ import annotations

from ...core.faces import lazy_names

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .compare_mode import CompareError, CompareWithCPU
    from .module_path import ModuleInfo, ModuleTracker, open_module_tracker
    from .nan_inf_mode import NanInfError, NanInfFinding, NanInfTracker
    from .recorder import OpRecorder
    from .single_op import compare_for_single_op, nan_inf_track_for_single_op

__all__ = [
    "CompareError",
    "CompareWithCPU",
    "ModuleInfo",
    "ModuleTracker",
    "NanInfError",
    "NanInfFinding",
    "NanInfTracker",
    "OpRecorder",
    "compare_for_single_op",
    "nan_inf_track_for_single_op",
    "open_module_tracker",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    __all__,
    "profilers.operators.module_path",
    {
        "CompareError": "profilers.operators.compare_mode",
        "CompareWithCPU": "profilers.operators.compare_mode",
        "NanInfError": "profilers.operators.nan_inf_mode",
        "NanInfFinding": "profilers.operators.nan_inf_mode",
        "NanInfTracker": "profilers.operators.nan_inf_mode",
        "OpRecorder": "profilers.operators.recorder",
        "compare_for_single_op": "profilers.operators.single_op",
        "nan_inf_track_for_single_op": "profilers.operators.single_op",
    },
)
