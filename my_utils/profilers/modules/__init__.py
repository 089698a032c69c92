"""Times, FLOPs and memory of the modules of a model."""

from __future__ import annotations

from ...core.faces import lazy_names

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .debug_layer import DebugLayer
    from .module_profiler import ModuleProfiler

__all__ = ["DebugLayer", "ModuleProfiler"]

__getattr__, __dir__ = lazy_names(
    __name__,
    __all__,
    "profilers.modules.debug_layer",
    {"ModuleProfiler": "profilers.modules.module_profiler"},
)
