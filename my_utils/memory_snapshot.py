"""Compatibility module; the code is in `my_utils.profilers.memory`."""

from __future__ import annotations

from .core.environment import read_at_import
from .core.lazy_names import lazy_names

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .profilers.memory.memory_snapshot import MemorySnapshotter, NoOpMemorySnapshotter

    global_snapshotter: MemorySnapshotter | NoOpMemorySnapshotter
    """A snapshotter for the whole program: on if ENABLE_MEMORY_SNAPSHOT=1 was in the environment
    when this module was imported, otherwise it does nothing."""

__all__ = ["MemorySnapshotter", "NoOpMemorySnapshotter", "global_snapshotter"]

read_at_import("ENABLE_MEMORY_SNAPSHOT")

__getattr__, __dir__ = lazy_names(
    __name__,
    {"global_snapshotter": ("profilers.memory.memory_snapshot", "make_global_snapshotter")},
)
