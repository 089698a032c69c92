"""The module paths that pickles of the first release contain.

Today a pickle contains the public path of a class, so the file of the class may move. Pickles of
the first release contain the path of the file. Each of these paths is a module without a file; it
takes its names from the file that has the code now.
"""

from __future__ import annotations

import importlib
import sys
import types

TYPE_CHECKING = False  # importing typing would take longer than all the rest
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

__all__ = ["install"]

_ROOT = __name__.partition(".")[0]

# Old and new path below my_utils.
_MOVED = {
    "_capture.control_file": "capture.on_demand.control_file",
    "_clock.offset": "clock_sync.offset",
    "_diverge.align": "diverge.align",
    "_diverge.search": "diverge.search",
    "_diverge.tensors": "diverge.tensors",
    "_dump.form": "dumps.form",
    "_etcd.rounds": "etcd.rounds",
    "_hashing.batches": "checksums.batches",
    "_module_times.overhead": "modules.overhead",
    "_ncu_csv": "ncu.ncu_csv",
    "_operators.module_path": "operators.module_path",
    "_operators.nan_inf_mode": "operators.nan_inf_mode",
    "_recorder.graph": "recordings.graph",
    "_recorder.plan": "recordings.plan",
    "_recorder.recording": "recordings.recording",
    "_run_report.changes": "report.changes",
    "_run_report.heat": "report.heat",
    "_run_report.stragglers": "report.stragglers",
    "_sweep.results": "sweep.results",
    "_times.gathered": "timing.gathered",
    "_times.packed": "timing.packed",
    "_tracker.record": "memory.tracker.record",
    "profiling._capture_hooks": "capture.hooks",
    "profiling._capture_modules": "capture.modules",
    "profiling._capture_spec": "capture.spec",
    "profiling._decorated_run": "torch_profiler.decorated_run",
    "profiling._profile_config": "capture.workers.config",
    "profiling._worker_calls": "capture.workers.calls",
}


def install() -> None:
    """Puts the old paths into `sys.modules`; what they lead to is imported when it is asked for."""
    for old, new in _MOVED.items():
        name = f"{_ROOT}.{old}"
        module = types.ModuleType(name, f"The code is in {_ROOT}.{new}.")
        module.__getattr__ = _finder(name, f"{_ROOT}.{new}")  # type: ignore[method-assign]
        sys.modules[name] = module


def _finder(old: str, new: str) -> Callable[[str], Any]:
    def find(name: str) -> Any:
        # Those who go through all modules ask for __file__ and the like; that loads nothing.
        if name.startswith("__"):
            raise AttributeError(f"module {old!r} has no attribute {name!r}")
        return getattr(importlib.import_module(new), name)

    return find
