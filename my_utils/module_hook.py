"""Compatibility module; the code is in `my_utils.tensors.recordings`."""

from __future__ import annotations

from .core.lazy_names import lazy_names

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .tensors.recordings.module_hook import ForwardTraceRecorder
    from .tensors.recordings.recording import (
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

__getattr__, __dir__ = lazy_names(__name__)
