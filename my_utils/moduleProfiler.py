"""Compatibility module; the code is in `my_utils.modules`."""

from __future__ import annotations

from .common.faces import lazy_names

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .modules.module_profiler import ModuleProfiler

__all__ = ["ModuleProfiler"]

__getattr__, __dir__ = lazy_names(__name__, __all__, "modules.module_profiler")
