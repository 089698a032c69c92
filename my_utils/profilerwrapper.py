"""Compatibility module; the code is in `my_utils.profilers.torch_profiler`."""

from __future__ import annotations

from .core.lazy_names import lazy_names

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .profilers.torch_profiler.profiler_wrapper import ProfilerWrapper

__all__ = ["ProfilerWrapper"]

__getattr__, __dir__ = lazy_names(__name__)
