"""Compatibility module; the code is in `my_utils.tensors.recordings`."""

from __future__ import annotations

from .core.faces import lazy_names

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .tensors.recordings import (
        ForwardTraceRecorder,
        ModuleInfo,
        Recording,
        RecordingError,
        RootCall,
        TraceEvent,
        TraceTensorMeta,
    )

__all__ = [
    "ForwardTraceRecorder",
    "ModuleInfo",
    "Recording",
    "RecordingError",
    "RootCall",
    "TraceEvent",
    "TraceTensorMeta",
]

__getattr__, __dir__ = lazy_names(__name__, __all__, "tensors.recordings")
