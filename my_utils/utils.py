"""Compatibility module; the code is in `my_utils.record.stages`."""

from __future__ import annotations

from .core.lazy_names import lazy_names

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .profilers.modules.debug_layer import DebugLayer as DebugLayer
    from .record.stages.timers import DebuggingEvent, MyTimer, NoOpMyTimer, global_timer
    from .tensors.checksums.batches import ChecksumUtils

__all__ = ["ChecksumUtils", "DebuggingEvent", "MyTimer", "NoOpMyTimer", "global_timer"]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "profilers.modules.debug_layer": ("DebugLayer",),
        "record.stages.timers": (
            "DebuggingEvent",
            "MyTimer",
            "NoOpMyTimer",
            "_make_timer",
            "global_timer",
        ),
        "tensors.checksums.batches": ("ChecksumUtils",),
    },
)
