"""A path that users know; the code is in `my_utils.operators`."""

from __future__ import annotations

from .common.faces import lazy_names

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .operators.compare_mode import CompareError, CompareWithCPU
    from .operators.module_path import ModuleInfo, ModuleTracker, open_module_tracker
    from .operators.nan_inf_mode import NanInfError, NanInfFinding, NanInfTracker
    from .operators.recorder import OpRecorder
    from .operators.single_op import compare_for_single_op, nan_inf_track_for_single_op

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
    "operators.module_path",
    {
        "CompareError": "operators.compare_mode",
        "CompareWithCPU": "operators.compare_mode",
        "NanInfError": "operators.nan_inf_mode",
        "NanInfFinding": "operators.nan_inf_mode",
        "NanInfTracker": "operators.nan_inf_mode",
        "OpRecorder": "operators.recorder",
        "compare_for_single_op": "operators.single_op",
        "nan_inf_track_for_single_op": "operators.single_op",
    },
)
