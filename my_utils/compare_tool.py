"""Compatibility module; the code is in `my_utils.profilers.operators`."""

from __future__ import annotations

from .core.lazy_names import lazy_names

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .profilers.operators.compare_mode import CompareError, CompareWithCPU
    from .profilers.operators.module_path import ModuleInfo, ModuleTracker, open_module_tracker
    from .profilers.operators.nan_inf_mode import NanInfError, NanInfFinding, NanInfTracker
    from .profilers.operators.recorder import OpRecorder
    from .profilers.operators.single_op import compare_for_single_op, nan_inf_track_for_single_op

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

__getattr__, __dir__ = lazy_names(__name__)
