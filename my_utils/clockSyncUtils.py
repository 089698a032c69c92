"""Compatibility module; the code is in `my_utils.cluster.clock_sync`."""

from __future__ import annotations

from .core.faces import lazy_names

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .cluster.clock_sync import (
        ClockOffset,
        ClockServer,
        ClockSyncError,
        ClockSynchronizer,
        SocketClockSynchronizer,
    )

__all__ = [
    "ClockOffset",
    "ClockServer",
    "ClockSyncError",
    "ClockSynchronizer",
    "SocketClockSynchronizer",
]

__getattr__, __dir__ = lazy_names(__name__, __all__, "cluster.clock_sync")
