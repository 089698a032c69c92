"""Compatibility module; the code is in `my_utils.cluster.clock_sync`."""

from __future__ import annotations

from .core.lazy_names import lazy_names

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .cluster.clock_sync.offset import ClockOffset, ClockSyncError
    from .cluster.clock_sync.server import ClockServer
    from .cluster.clock_sync.synchronizer import ClockSynchronizer, SocketClockSynchronizer

__all__ = [
    "ClockOffset",
    "ClockServer",
    "ClockSyncError",
    "ClockSynchronizer",
    "SocketClockSynchronizer",
]

__getattr__, __dir__ = lazy_names(__name__)
