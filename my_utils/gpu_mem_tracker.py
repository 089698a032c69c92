"""Compatibility module; the code is in `my_utils.profilers.memory`."""

from __future__ import annotations

from .core.faces import lazy_names

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .profilers.memory import GPU_Performance_Tracker, Peak

__all__ = ["GPU_Performance_Tracker", "Peak"]

__getattr__, __dir__ = lazy_names(__name__, __all__, "profilers.memory")
