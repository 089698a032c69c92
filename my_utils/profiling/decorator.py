"""Compatibility module; the code is in `my_utils.profilers.torch_profiler`."""

from __future__ import annotations

from ..core.lazy_names import lazy_names

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..profilers.torch_profiler.decorator import (
        ProfilerOptions,
        add_profiler_args,
        profiler,
        profiler_options,
        step_profiler,
    )

__all__ = ["ProfilerOptions", "add_profiler_args", "profiler", "profiler_options", "step_profiler"]

__getattr__, __dir__ = lazy_names(__name__)
