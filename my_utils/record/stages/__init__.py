"""Timers and their stages, for a training script."""

from __future__ import annotations

from ...core.faces import lazy_names

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .timers import DebuggingEvent, MyTimer, NoOpMyTimer, global_timer

__all__ = ["DebuggingEvent", "MyTimer", "NoOpMyTimer", "global_timer"]

__getattr__, __dir__ = lazy_names(__name__, __all__, "record.stages.timers")
