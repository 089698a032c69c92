"""Compatibility module; the code is in `my_utils.profilers.modules`."""

from __future__ import annotations

from .core.lazy_names import lazy_names

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .profilers.modules.module_profiler import ModuleProfiler

__all__ = ["ModuleProfiler"]

__getattr__, __dir__ = lazy_names(__name__)
