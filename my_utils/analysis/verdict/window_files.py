"""Reads the windows of steps that a process keeps beside its CSV.

A window has the sums and the maxima of 100, 1,000 or 10,000 steps. They reach back to the first
step of a run, also where the oldest parts of the CSV were removed. docs/runs/leave-it-on.md has the
files.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from ... import _core
from ...trace.inputs import FileSet
from .rank_files import SEPARATOR, all_same
from .tracks import LEAST_STEPS, RUN_TAG

WIDTHS = (100, 1000, 10000)
TAIL_BYTES = 8 << 10  # of a finer file, which has what the last window of a coarser one lacks
HEAD = np.dtype(
    [
        ("magic", "u4"), ("bytes", "u4"), ("version", "u2"), ("kind", "u2"), ("attempt", "u4"),
        ("track", "u4"), ("width", "u4"), ("steps", "u4"), ("cells", "u4"), ("first_step", "i8"),
        ("last_step", "i8"), ("begin_ns", "i8"), ("mean_begin_ns", "i8"), ("sum_ns", "u8"),
        ("max_ns", "u8"), ("untimed_sum_ns", "u8"), ("untimed_max_ns", "u8"),
    ]
)  # fmt: skip
CELL = np.dtype(
    [
        ("window", "u4"), ("path", "u4"), ("count", "u4"), ("unused", "u4"), ("sum_ns", "f8"),
        ("max_ns", "f8"), ("begin", "f8"), ("end", "f8"),
    ]
)  # fmt: skip

Rows = npt.NDArray[Any]  # of HEAD or CELL


@dataclass
class RankWindows:
    """The windows of a rank's training thread, in the order of time. cells: `window` is an index
    into `windows`, `path` one into `paths`, which are joined by "/", parents before their children;
    `parents` has their indices, the path's own where it has no parent. is_automatic: `my_utils run`
    counted the steps."""

    rank: int
    windows: Rows
    cells: Rows
    paths: list[str]
    parents: list[int]
    is_automatic: bool = False
    errors: list[str] = field(default_factory=list)


def read_windows(file_set: FileSet, width: int) -> RankWindows | None:
    """The windows of that width, and at the end finer ones; None where there are none. Thread-safe.

    width: one of WIDTHS.
    """
    finer = [one for one in reversed(WIDTHS) if one < width]
    files = []
    for start in file_set.starts():
        files += [(f"{start}.{width}{age}.windows", 0) for age in (".old", "")]
        files += [(f"{start}.{one}.windows", TAIL_BYTES) for one in finer]
    found = _core.read_windows(files)
    windows = np.frombuffer(found["windows"], HEAD)
    cells = np.frombuffer(found["cells"], CELL)
    errors = list(found["errors"])
    if found["newer_blocks"]:
        errors.append("windows of steps are of a newer version of my_utils")
    if not len(windows):
        return None
    parents = [
        number if parent < 0 else parent for number, (parent, _) in enumerate(found["paths"])
    ]
    kept = _of_training(windows, found["tracks"])
    kept &= _without_what_is_twice(windows, kept)
    tags = {found["tracks"][track][2] for track in set(windows["track"][kept].tolist())}
    windows, cells = chosen_windows(windows, cells, kept)
    return RankWindows(
        file_set.rank, windows, cells, _full_names(found["paths"], parents), parents,
        tags == {RUN_TAG}, errors,
    )  # fmt: skip


def _of_training(windows: Rows, tracks: Sequence[tuple[int, int, str]]) -> npt.NDArray[np.bool_]:
    """Of each attempt the windows of one track: that of `my_utils run`, or else, of the thread with
    the lowest number that has half as many steps as another, that with most time in stages."""
    if len(tracks) == 1:
        return np.ones(len(windows), bool)
    steps = np.bincount(windows["track"], windows["steps"], len(tracks))
    timed = (windows["sum_ns"] - np.minimum(windows["untimed_sum_ns"], windows["sum_ns"])).astype(
        "f8"
    )
    covered = np.bincount(windows["track"], timed, len(tracks))
    kept = np.zeros(len(tracks), bool)
    for attempt in {one[0] for one in tracks}:
        those = [at for at, one in enumerate(tracks) if one[0] == attempt and steps[at] > 0]
        of_run = [at for at in those if tracks[at][2] == RUN_TAG]
        most = max((steps[at] for at in those), default=0)
        among = of_run or [at for at in those if steps[at] >= LEAST_STEPS * most]
        if among:
            thread = min(tracks[at][1] for at in among)
            kept[max((at for at in among if tracks[at][1] == thread), key=covered.__getitem__)] = (
                True
            )
    found: npt.NDArray[np.bool_] = kept[windows["track"]]
    return found


def _without_what_is_twice(windows: Rows, those: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
    """Of a coarse window and finer ones inside it the coarse one."""
    kept = np.ones(len(windows), bool)
    if all_same(windows["width"]):
        return kept
    widths = np.unique(windows["width"][those])[::-1]
    for attempt in np.unique(windows["attempt"]):
        of_attempt = those & (windows["attempt"] == attempt)
        end = -1
        for width in widths:
            rows = of_attempt & (windows["width"] == width)
            kept[rows] = windows["first_step"][rows] > end if width < widths[0] else True
            last = windows["last_step"][rows & kept]
            end = max(end, int(last.max())) if len(last) else end
    return kept


def chosen_windows(windows: Rows, cells: Rows, kept: npt.NDArray[np.bool_]) -> tuple[Rows, Rows]:
    """The windows that are kept, and their cells, as `RankWindows` has both."""
    if kept.all():
        return windows, cells
    places = np.cumsum(kept) - 1
    cells = cells[kept[cells["window"]]]
    cells["window"] = places[cells["window"]]
    return windows[kept], cells


def _full_names(paths: Sequence[tuple[int, str]], parents: Sequence[int]) -> list[str]:
    names: list[str] = []
    for number, (_, name) in enumerate(paths):
        parent = parents[number]
        names.append(name if parent == number else f"{names[parent]}{SEPARATOR}{name}")
    return names
