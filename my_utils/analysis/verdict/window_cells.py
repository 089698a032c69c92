"""Windows of steps as the cells of ranks: a column of a run's arrays has the means of its steps.

The ranks of a run have the same windows of the same stages, as a rule. What follows from that is
found once for all of them, and sums are taken of many ranks at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from .rank_cells import ATTEMPT, RankCounters
from .rank_files import Columns
from .run_data import Integers, Matrix
from .window_files import RankWindows

STEP_COLUMNS = ("window_step_ns", "window_begin_ns", "window_longest_ns")  # passed as counters


class WindowCells(NamedTuple):
    """Of a rank. cells: as `reduce.sum_cells` has them, a column for a step. steps: `STEP_COLUMNS`
    of each column. begins_anew: as in `RankCells`."""

    cells: Columns
    steps: RankCounters
    begins_anew: Integers


class _Sorted(NamedTuple):
    """order: that brings those of one column, or cell, together. firsts: where each begins then."""

    order: Integers
    firsts: Integers

    def sums(self, values: Any) -> Matrix:
        """values: rank × window, or rank × cell."""
        found: Matrix = np.add.reduceat(values[:, self.order].astype(np.float64), self.firsts, 1)
        return found


def cells_of_windows(ranks: Sequence[RankWindows], width: int) -> list[WindowCells]:
    """Of each rank, in order. width: steps of a column."""
    return [one for group in _groups(ranks) for one in _make_cells(group, width)]


def _groups(ranks: Sequence[RankWindows]) -> Iterator[list[RankWindows]]:
    """Neighbours that have the same windows of the same stages."""
    group: list[RankWindows] = []
    for one in ranks:
        if group and not _is_like(group[0], one):
            yield group
            group = []
        group.append(one)
    if group:
        yield group


def _is_like(one: RankWindows, other: RankWindows) -> bool:
    return (
        (one.paths, one.is_automatic) == (other.paths, other.is_automatic)
        and _same(one.windows, other.windows, ("first_step", "attempt", "steps"))
        and _same(one.cells, other.cells, ("window", "path"))
    )


def _same(rows: npt.NDArray[Any], others: npt.NDArray[Any], names: Sequence[str]) -> bool:
    return all(np.array_equal(rows[name], others[name]) for name in names)


def _make_cells(ranks: list[RankWindows], width: int) -> Iterator[WindowCells]:
    """ranks: that are alike."""
    windows, cells, paths = ranks[0].windows, ranks[0].cells, len(ranks[0].paths)
    keys = windows["first_step"] // width * width
    if ranks[0].is_automatic:
        keys = keys + windows["attempt"].astype(np.int64) * ATTEMPT
    known, at = np.unique(keys, return_inverse=True)
    columns = _sorted(at)
    places, of_cell = np.unique(at[cells["window"]] * paths + cells["path"], return_inverse=True)
    in_cells, column = _sorted(of_cell), places // paths

    sum_ns, steps, begin_ns = (_stacked(ranks, name) for name in ("sum_ns", "steps", "begin_ns"))
    counts = columns.sums(steps)
    origins = begin_ns.min(1, keepdims=True)
    mean_begins = begin_ns - origins + _stacked(ranks, "mean_begin_ns")
    step_begins = columns.sums(mean_begins.astype(np.float64) * steps) / counts
    longest = np.maximum.reduceat(
        _stacked(ranks, "max_ns")[:, columns.order].astype(np.float64), columns.firsts, 1
    )
    values = np.stack([columns.sums(sum_ns) / counts, step_begins, longest], axis=1)

    ran = np.stack([one.cells["count"] for one in ranks]).astype(np.float64)
    mean_steps = (sum_ns / steps)[:, cells["window"]] * ran
    whole = np.maximum(in_cells.sums(ran), 1.0)

    def moments_of(name: str) -> Integers:
        """Unix time in ns."""
        shares = np.stack([one.cells[name] for one in ranks])
        mean = step_begins[:, column] + in_cells.sums(shares * mean_steps) / whole
        found: Integers = origins + mean.astype(np.int64)
        return found

    begins, ends = moments_of("begin"), moments_of("end")
    own = in_cells.sums(np.stack([one.cells["sum_ns"] for one in ranks])) / counts[:, column]
    own_ns = own.astype(np.int64)
    step, path = known[column], (places % paths).astype(np.uint32)
    anew = _begins_anew(windows, columns, known)
    for row in range(len(ranks)):
        yield WindowCells(
            {
                "step": step, "path": path, "self_ns": own_ns[row], "begin_ns": begins[row],
                "last_begin_ns": begins[row], "end_ns": ends[row],
            },
            RankCounters(list(STEP_COLUMNS), known, values[row]),
            anew,
        )  # fmt: skip


def _sorted(at: Integers) -> _Sorted:
    """at: numbers from 0 up, all of which occur."""
    order = np.argsort(at, kind="stable")
    return _Sorted(order, np.flatnonzero(np.diff(at[order], prepend=-1)))


def _stacked(ranks: Sequence[RankWindows], name: str) -> npt.NDArray[Any]:
    return np.stack([one.windows[name] for one in ranks])


def _begins_anew(windows: npt.NDArray[Any], columns: _Sorted, known: Integers) -> Integers:
    attempts = np.maximum.reduceat(windows["attempt"][columns.order], columns.firsts)
    found: Integers = known[1:][attempts[1:] != attempts[:-1]]
    return found
