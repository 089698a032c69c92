"""Compatibility module; the code is in `my_utils.profilers.memory`."""

from __future__ import annotations

from .core.lazy_names import lazy_names

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .profilers.memory.memory_snapshot import (
        MemorySnapshotter,
        NoOpMemorySnapshotter,
        global_snapshotter,
    )

__all__ = ["MemorySnapshotter", "NoOpMemorySnapshotter", "global_snapshotter"]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "profilers.memory.memory_snapshot": (
            "MemorySnapshotter",
            "NoOpMemorySnapshotter",
            "global_snapshotter",
        )
    },
)
