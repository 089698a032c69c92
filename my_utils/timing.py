"""Times of functions and blocks by name, on one rank or gathered from all: `tprofiler.time`."""

from __future__ import annotations

from .core.lazy_names import lazy_names

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ._core import timer
    from .record.timing.gathered import GatheredTime, ProfiledTime, TimeData
    from .record.timing.manager import TimeManager, timer_wrap

__all__ = ["GatheredTime", "ProfiledTime", "TimeData", "TimeManager", "timer", "timer_wrap"]

__getattr__, __dir__ = lazy_names(__name__)
