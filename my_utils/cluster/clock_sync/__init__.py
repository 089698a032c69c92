"""Measures clock differences between hosts: exchanges, estimates, and all ranks of a job."""

from __future__ import annotations

from ...core.faces import lazy_names

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .offset import ClockOffset, ClockSyncError
    from .server import ClockServer
    from .synchronizer import ClockSynchronizer, SocketClockSynchronizer

__all__ = [
    "ClockOffset",
    "ClockServer",
    "ClockSyncError",
    "ClockSynchronizer",
    "SocketClockSynchronizer",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    __all__,
    "cluster.clock_sync.offset",
    {
        "ClockServer": "cluster.clock_sync.server",
        "ClockSynchronizer": "cluster.clock_sync.synchronizer",
        "SocketClockSynchronizer": "cluster.clock_sync.synchronizer",
    },
)
