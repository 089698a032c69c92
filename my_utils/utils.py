"""Compatibility module; the code is in `my_utils.record.stages`."""

from __future__ import annotations

import sys

from .core.environment import read_at_import, switch_at_import
from .core.lazy_names import lazy_names

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .profilers.modules.debug_layer import DebugLayer as DebugLayer
    from .record.stages.timers import (
        DebuggingEvent,
        MyTimer,
        NoOpMyTimer,
        _make_timer as _make_timer,
    )
    from .tensors.checksums.batches import ChecksumUtils

    global_timer: MyTimer | NoOpMyTimer
    """A timer for code that is given none: records if ENABLE_TIMER=1 was in the environment when
    this module was imported, else not."""

__all__ = ["ChecksumUtils", "DebuggingEvent", "MyTimer", "NoOpMyTimer", "global_timer"]

read_at_import("ENABLE_TIMER", "DEBUG_DATA_CONSISTENCY")
_batches = sys.modules.get("my_utils.tensors.checksums.batches")
if _batches is not None and hasattr(_batches, "ChecksumUtils"):  # this is a reload
    _batches.ChecksumUtils.enabled = switch_at_import("DEBUG_DATA_CONSISTENCY")

__getattr__, __dir__ = lazy_names(
    __name__, {"global_timer": ("record.stages.timers", "make_global_timer")}
)
