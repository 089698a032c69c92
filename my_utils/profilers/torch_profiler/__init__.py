"""torch's profiler: around blocks, steps and decorated functions."""

from __future__ import annotations

from ...core.faces import lazy_names

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .decorator import (
        ProfilerOptions,
        add_profiler_args,
        profiler,
        profiler_options,
        step_profiler,
    )
    from .dit_profiler import FlexibleProfiler, create_profiler_context
    from .profiler_wrapper import ProfilerWrapper
    from .trainer_callback import ProfCallback

__all__ = [
    "FlexibleProfiler",
    "ProfCallback",
    "ProfilerOptions",
    "ProfilerWrapper",
    "add_profiler_args",
    "create_profiler_context",
    "profiler",
    "profiler_options",
    "step_profiler",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    __all__,
    "profilers.torch_profiler.decorator",
    {
        "FlexibleProfiler": "profilers.torch_profiler.dit_profiler",
        "ProfCallback": "profilers.torch_profiler.trainer_callback",
        "ProfilerWrapper": "profilers.torch_profiler.profiler_wrapper",
        "create_profiler_context": "profilers.torch_profiler.dit_profiler",
    },
)
