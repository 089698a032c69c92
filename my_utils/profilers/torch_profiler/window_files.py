"""The files of one profiled window, each complete or missing; a failed write is a warning."""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from ...core.extras import require
from ...core.file_names import numbered
from ...core.files import on_whole_path
from ...core.tables import write_text
from ..memory.memory_history import Recording
from ..memory.memory_snapshot_form import make_snapshot, write_snapshot
from .flops_table import operators_by_time
from .operator_figures import operator_table
from .torch_profile import device_time, export_trace, on_this_machine, tolerated, write_each

# Frames of a stack by which key_averages.txt groups operators.
STACK_FRAMES = 5

# tqdm's monitor, and the thread that asks whether a training is over.
_WAITING = re.compile(
    rb"(^|[;/])tqdm/_monitor\.py\(|my_utils/profilers/torch_profiler/slot\.py\(\d+\):_*watch"
)


@dataclass(frozen=True)
class WindowFiles:
    """Which files a window leaves in its folder.

    name: what their names begin with, "rank0". leading: whether this rank's table is
    `key_averages.txt` without it. The trace is always written.
    """

    name: str
    leading: bool
    key_averages: bool
    memory: bool
    stacks: bool
    by_shape: bool
    by_stack: bool

    def write(self, profiler: Any, folder: Path, history: Recording | None = None) -> bool:
        """Writes them, unless the folder cannot be made; what else cannot be is a warning each.

        history: of CUDA's allocator, which knows more of memory than the profiler.
        """
        with tolerated("ProfCallback", f"{folder} could not be written, and the training goes on"):
            folder.mkdir(parents=True, exist_ok=True)
        if not folder.is_dir():
            return False
        rank, prefix = self.name, "" if self.leading else f"{self.name}_"
        files: dict[str, Callable[[Path], object]] = {
            f"{rank}.pt.trace.json": partial(export_trace, profiler)
        }
        if self.key_averages:
            files[f"{prefix}key_averages.txt"] = partial(self._write_table, profiler)
        if self.stacks:
            files[f"{rank}_stacks.txt"] = partial(_write_stacks, profiler)
        if self.memory:
            files[f"{rank}_memory_snapshot.pickle"] = partial(save_snapshot, profiler, history)
            files[f"{rank}_memory-timeline.html"] = partial(_write_memory_timeline, profiler)
        write_each("ProfCallback", {folder / name: write for name, write in files.items()})
        return True

    def _write_table(self, profiler: Any, path: Path) -> None:
        """A short table of the operators by name, and torch's wide one."""
        by = on_this_machine("self_cuda_time_total", device_time(profiler))
        table = operator_table(profiler, by, -1, self.by_shape, STACK_FRAMES * self.by_stack)
        grouped = ["name"] + ["shapes"] * self.by_shape + ["stack"] * self.by_stack
        write_text(
            path,
            f"Operators by time\n{operators_by_time(profiler)}\n\n"
            f"By {', '.join(grouped)}\n{table}\n",
        )


def own_folder(parent: Path, name: str, rank: str) -> Path:
    """`<parent>/<name>`, numbered when this rank, "rank0", has files there already.

    Ranks share the folder, so that it is there says nothing.
    """
    folders = (parent / one for one in numbered(name))
    return next(
        folder for folder in folders if not any(any(folder.glob(f"{rank}{end}*")) for end in "._")
    )


def _write_stacks(profiler: Any, path: Path) -> None:
    metric = "self_cuda_time_total" if device_time(profiler) else "self_cpu_time_total"
    with on_whole_path(path) as temporary:
        profiler.export_stacks(os.fspath(temporary), metric)
        _leave_out_helpers(temporary)


def _leave_out_helpers(path: Path) -> None:
    """Takes out the stacks of threads that only wait, for as long as the window lasts."""
    kept = path.with_name(f"{path.name}.kept")
    try:
        with open(path, "rb") as found, open(kept, "wb") as file:
            file.writelines(line for line in found if _WAITING.search(line) is None)
        os.replace(kept, path)
    finally:
        kept.unlink(missing_ok=True)


# --- memory ---


def save_snapshot(profiler: Any, history: Recording | None, path: Path) -> None:
    """The snapshot of CUDA's allocator; without its history, of what the profiler saw."""
    if history is not None:
        history.save(path)
    else:
        write_snapshot(path, make_snapshot(profiler))


def _write_memory_timeline(profiler: Any, path: Path) -> None:
    """torch deprecates its timeline, and it is what the file is known for."""
    export = getattr(profiler, "export_memory_timeline", None)
    if export is None:
        raise RuntimeError("this torch has no export_memory_timeline; the snapshot shows the same")
    pyplot = require("matplotlib.pyplot", "the memory timeline")
    figures = set(pyplot.get_fignums())
    try:
        with on_whole_path(path) as temporary, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            export(os.fspath(temporary), device=_device(profiler))
    finally:
        for number in set(pyplot.get_fignums()) - figures:
            pyplot.close(number)


def _device(profiler: Any) -> str:
    import torch

    seen = torch.cuda.is_available() and device_time(profiler)
    return f"cuda:{torch.cuda.current_device()}" if seen else "cpu"
