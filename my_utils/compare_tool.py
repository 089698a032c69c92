"""Compatibility module; the code is in `my_utils.profilers.operators`."""

from __future__ import annotations

from .core.faces import lazy_names

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .profilers.operators import (
        CompareError,
        CompareWithCPU,
        ModuleInfo,
        ModuleTracker,
        NanInfError,
        NanInfFinding,
        NanInfTracker,
        OpRecorder,
        compare_for_single_op,
        nan_inf_track_for_single_op,
        open_module_tracker,
    )

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

__getattr__, __dir__ = lazy_names(__name__, __all__, "profilers.operators")
