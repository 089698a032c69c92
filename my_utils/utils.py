"""Compatibility module; the code is in `my_utils.stages`."""

from __future__ import annotations

from .common.faces import lazy_names

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .checksums.batches import ChecksumUtils
    from .modules.debug_layer import DebugLayer as DebugLayer
    from .stages.timers import DebuggingEvent, MyTimer, NoOpMyTimer, global_timer

__all__ = ["ChecksumUtils", "DebuggingEvent", "MyTimer", "NoOpMyTimer", "global_timer"]

__getattr__, __dir__ = lazy_names(
    __name__,
    __all__,
    "stages.timers",
    {
        "ChecksumUtils": "checksums.batches",
        "DebugLayer": "modules.debug_layer",
        "_make_timer": "stages.timers",
    },
)
