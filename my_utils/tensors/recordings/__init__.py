"""Records the inputs and outputs of each module of a model."""

from __future__ import annotations

from ...core.faces import lazy_names

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .module_hook import ForwardTraceRecorder
    from .recording import (
        ModuleInfo,
        Recording,
        RecordingError,
        RootCall,
        TraceEvent,
        TraceTensorMeta,
        load_recording,
        save_recording,
    )

__all__ = [
    "ForwardTraceRecorder",
    "ModuleInfo",
    "Recording",
    "RecordingError",
    "RootCall",
    "TraceEvent",
    "TraceTensorMeta",
    "load_recording",
    "save_recording",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    __all__,
    "tensors.recordings.recording",
    {"ForwardTraceRecorder": "tensors.recordings.module_hook"},
)
