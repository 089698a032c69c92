"""Which rank the others waited for: the stages in which ranks synchronise, and the last to enter.

In such a stage, a collective for example, all ranks leave at about the same time, and the rank that
entered last waited least. So the longest time in the stage does not show who caused the wait. A
rank's wait is the latest entry minus its own. Which stages synchronise is given, or inferred: their
ends coincide while their starts spread.

The synchronising stages cut a step into segments. The rank that comes last to the end of a segment
determines its length. These ranks, one after another, are the critical path of the step. If a stage
runs several times in a step, the last run counts.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from ..verdict.quantiles import median
from ..verdict.rank_files import SEPARATOR
from ..verdict.run_data import Integers, Matrix
from .grid import Grid

# Ends that spread less than a quarter of the starts coincide.
SPREAD_RATIO = 0.25
OFFSET_STEPS = 9  # over which the offset of a clock is taken; odd
ROWS_AT_ONCE = 256
LINED_UP = 3  # offsets up to this multiple of the best ends' spread are ignored
CLOCK_WAS_SET_NS = 1_000_000  # between two steps; none drifts so fast
NOBODY = -1


@dataclass
class Segments:
    """What is before each synchronising stage, in the order of the step, and after the last one.

    All arrays have a row a segment and a column a step. sync: the stage at the end of each but the
    last segment. rank: the row (of the grid) that came last, NOBODY where fewer than two ranks
    came. begin_ns, end_ns: when that rank had left the segment before, and came to this end.
    late_ns: how much later than the second. cost_ns: the waits of all ranks together. lost_path,
    lost_ns: the stage in which the rank took longer than the median of its peers by most, and how
    much; NOBODY where it took longer in none. critical_ns: of each path what it took on the
    critical path, all steps but the warm-up together.
    """

    sync: list[int]
    rank: Integers
    begin_ns: Matrix
    end_ns: Matrix
    late_ns: Matrix
    cost_ns: Matrix
    lost_path: Integers
    lost_ns: Matrix
    critical_ns: dict[int, float]


def clock_offsets(grid: Grid) -> Matrix:
    """How far the clock of each rank is ahead of the median clock, per step, in ns.

    If nobody lined the clocks up, the ends of a synchronising stage show their offsets. The stage
    whose ends coincide best after the correction is used; without such a stage the result is
    zeros. NaN in a step in which the clock was set.

    A rank that always comes last in a stage looks there like one whose clock is wrong. So the
    result is zeros, too, if the ends of some stage coincide about as well without a correction.
    """
    none = np.zeros((len(grid.ranks), len(grid.steps)))
    if len(grid.ranks) < 2:
        return none
    best, as_they_are = none, none
    least = least_as_they_are = np.inf
    for path in grid.paths:
        (ends,) = grid.of(path, "end_ns")
        if np.isfinite(ends).sum() < ends.size / 2:
            continue
        late = ends - median(ends, 0)
        offsets = _steady(late)
        left = _spread(late - offsets)
        if left < least:
            least, best = left, offsets
        if (apart := _spread(late)) < least_as_they_are:
            least_as_they_are, as_they_are = apart, offsets
    inner = as_they_are[:, grid.warmup : len(grid.steps) - OFFSET_STEPS // 2]
    if np.abs(np.nan_to_num(inner)).max(initial=0.0) <= LINED_UP * least:
        return none
    best = np.where(np.isfinite(best), best, 0.0)
    moved = np.abs(np.diff(best, axis=1, prepend=best[:, :1]))
    was_set = moved > max(CLOCK_WAS_SET_NS, 10 * float(median(moved)))
    return np.where(was_set, np.nan, best)


def _steady(late: Matrix) -> Matrix:
    """The running median over steps, which follows a clock that drifts and one that is set."""
    half = OFFSET_STEPS // 2
    offsets = np.empty_like(late)
    for first in range(0, len(late), ROWS_AT_ONCE):
        rows = slice(first, first + ROWS_AT_ONCE)
        padded = np.pad(late[rows], ((0, 0), (half, half)), mode="edge")
        windows = np.lib.stride_tricks.sliding_window_view(padded, OFFSET_STEPS, axis=1)
        offsets[rows] = median(windows, 2)
    return offsets


def _spread(moments: Matrix) -> float:
    """Between the first and the last rank, as the median over steps."""
    here = np.isfinite(moments)
    if here.all() and len(moments) > 1:  # as in most runs, and several times faster
        return float(median(moments.max(0) - moments.min(0)))
    several = moments[:, here.sum(0) > 1]
    if several.size == 0:
        return float("nan")
    return float(np.median(np.nanmax(several, 0) - np.nanmin(several, 0)))


def synchronising_stages(grid: Grid, offsets: Matrix, pattern: re.Pattern[str] | None) -> list[int]:
    """The paths in which ranks synchronise: those whose name the pattern is found in, or, without
    one, those whose ends coincide while their starts spread; in the order of the step. Of stages
    inside one another the inner ones."""
    when: dict[int, float] = {}
    for path, name in grid.paths.items():
        if pattern is not None and not pattern.search(name):
            continue
        begins, ends = (moments - offsets for moments in grid.of(path, "last_begin_ns", "end_ns"))
        if pattern is not None or _spread(ends) < SPREAD_RATIO * _spread(begins):
            when[path] = float(median(begins - grid.begins))
    names = [grid.paths[path] for path in when]
    inner = [
        path
        for path in when
        if not any(name.startswith(grid.paths[path] + SEPARATOR) for name in names)
    ]
    return sorted(inner, key=lambda path: when[path])


def working_paths(grid: Grid, sync: list[int]) -> list[int]:
    """The paths in which ranks do not wait: no synchronising stage, nor inside one."""
    waiting = tuple(grid.paths[path] + SEPARATOR for path in sync)
    return [
        path for path, name in grid.paths.items() if not f"{name}{SEPARATOR}".startswith(waiting)
    ]


def segments_of(grid: Grid, offsets: Matrix, sync: list[int]) -> Segments:
    """The segments of all steps, with the time lost in each and the stage that lost it."""
    shape = (len(sync) + 1, len(grid.steps))
    unknown, nobody = np.full(shape, np.nan), np.full(shape, NOBODY)
    found = Segments(
        sync=sync, rank=nobody, begin_ns=unknown, end_ns=unknown.copy(), late_ns=unknown.copy(),
        cost_ns=unknown.copy(), lost_path=nobody.copy(), lost_ns=np.zeros(shape), critical_ns={},
    )  # fmt: skip
    left = grid.begins - offsets
    for row, path in enumerate(sync):
        begins, ends = (moments - offsets for moments in grid.of(path, "last_begin_ns", "end_ns"))
        _fill(found, row, begins, left)
        left = ends
        wait = median(ends, 0) - found.end_ns[row]
        found.critical_ns[path] = float(np.nansum(np.maximum(wait, 0)[grid.warmup :]))
    _fill(found, len(sync), grid.ends - offsets, left)
    _find_losses(grid, offsets, found)
    return found


def _fill(found: Segments, row: int, moments: Matrix, left: Matrix) -> None:
    """The rank that came last to a segment's end (`moments`, ranks × steps), begun at `left`."""
    here = np.isfinite(moments)
    several = here.sum(0) > 1
    known = np.where(here, moments, -np.inf)
    steps = np.arange(moments.shape[1])
    last = known.argmax(0)
    latest = known[last, steps]
    known[last, steps] = -np.inf
    found.rank[row, several] = last[several]
    found.begin_ns[row, several] = left[last, steps][several]
    found.end_ns[row, several] = latest[several]
    found.late_ns[row, several] = latest[several] - known.max(0)[several]
    sums = np.where(here, moments, 0).sum(0)[several]
    found.cost_ns[row, several] = latest[several] * here.sum(0)[several] - sums


def _find_losses(grid: Grid, offsets: Matrix, found: Segments) -> None:
    for path in working_paths(grid, found.sync):
        own, begins, ends = grid.of(path, "self_ns", "begin_ns", "end_ns")
        excess = grid.over_peers(own)
        critical = 0.0
        for row in range(len(found.rank)):
            inside = _share_inside(found, row, begins - offsets, ends - offsets)
            critical += np.nansum((inside * _of(own, found.rank[row]))[grid.warmup :])
            lost = np.nan_to_num(inside * _of(excess, found.rank[row]))
            more = lost > found.lost_ns[row]
            found.lost_ns[row, more] = lost[more]
            found.lost_path[row, more] = path
        found.critical_ns[path] = critical


def _share_inside(found: Segments, row: int, begins: Matrix, ends: Matrix) -> Matrix:
    """Which part of a stage of the critical rank is within the segment, 0 to 1, per step."""
    begin, end = _of(begins, found.rank[row]), _of(ends, found.rank[row])
    inside = np.minimum(end, found.end_ns[row]) - np.maximum(begin, found.begin_ns[row])
    share: Matrix = np.clip(inside / np.maximum(end - begin, 1), 0, 1)
    return share


def _of(matrix: Matrix, rows: Integers) -> Matrix:
    """One value a step, each from the rank that counts there; NaN where nobody does."""
    values: Matrix = matrix[rows, np.arange(matrix.shape[1])]
    return np.where(rows == NOBODY, np.nan, values)
