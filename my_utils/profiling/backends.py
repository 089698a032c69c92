"""Compatibility module; the code is in `my_utils.profilers.capture`."""

from __future__ import annotations

from ..core.lazy_names import lazy_names

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..profilers.capture.backends import (
        TOOLS,
        CaptureBackend,
        CudaProfilerBackend,
        MemorySnapshotBackend,
        MultiBackend,
        NoOpBackend,
        TorchProfilerBackend,
        make_backend,
    )

__all__ = [
    "TOOLS",
    "CaptureBackend",
    "CudaProfilerBackend",
    "MemorySnapshotBackend",
    "MultiBackend",
    "NoOpBackend",
    "TorchProfilerBackend",
    "make_backend",
]

__getattr__, __dir__ = lazy_names(__name__)
