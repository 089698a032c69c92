"""Where memory goes: samples over time, snapshots, and recovery from out of memory."""

from __future__ import annotations

from ...core.faces import lazy_names

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .gpu_mem_tracker import GPU_Performance_Tracker
    from .memory_snapshot import MemorySnapshotter, NoOpMemorySnapshotter, global_snapshotter
    from .oom_restore import catch_oom, check_oom_flag, set_oom_flag
    from .tracker.record import Peak

__all__ = [
    "GPU_Performance_Tracker",
    "MemorySnapshotter",
    "NoOpMemorySnapshotter",
    "Peak",
    "catch_oom",
    "check_oom_flag",
    "global_snapshotter",
    "set_oom_flag",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    __all__,
    "profilers.memory.memory_snapshot",
    {
        "GPU_Performance_Tracker": "profilers.memory.gpu_mem_tracker",
        "Peak": "profilers.memory.tracker.record",
        "catch_oom": "profilers.memory.oom_restore",
        "check_oom_flag": "profilers.memory.oom_restore",
        "set_oom_flag": "profilers.memory.oom_restore",
    },
)
