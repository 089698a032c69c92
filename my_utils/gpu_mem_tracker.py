"""Compatibility module; the code is in `my_utils.profilers.memory`."""

from __future__ import annotations

from .core.lazy_names import lazy_names

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .profilers.memory.gpu_mem_tracker import GPU_Performance_Tracker
    from .profilers.memory.tracker.record import Peak

__all__ = ["GPU_Performance_Tracker", "Peak"]

__getattr__, __dir__ = lazy_names(__name__)
