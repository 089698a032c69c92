"""Compatibility module; the code is in `my_utils.clock_sync`."""

from __future__ import annotations

from .common.faces import lazy_names

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .clock_sync import (
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

__getattr__, __dir__ = lazy_names(__name__, __all__, "clock_sync")
