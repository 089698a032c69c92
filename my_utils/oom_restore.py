"""Compatibility module; the code is in `my_utils.profilers.memory`."""

from __future__ import annotations

from .core.lazy_names import lazy_names

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .profilers.memory.oom_restore import catch_oom, check_oom_flag, set_oom_flag

__all__ = ["catch_oom", "check_oom_flag", "set_oom_flag"]

__getattr__, __dir__ = lazy_names(__name__)
