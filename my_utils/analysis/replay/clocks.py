"""Clocks put right by collectives, which all members leave at about the same time."""

from __future__ import annotations

import numpy as np

from .operations import TOGETHER, Floats, Ints, Operations, numbers_of
from .peers import Groups

UNKNOWNS_MAX = 3000  # ranks and groups: the equations are solved as a whole


def with_one_clock(operations: Operations) -> Operations | None:
    """The operations with each rank's times moved by what it leaves its collectives too late or too
    early, in the median of each of its groups. None where no collectives join the ranks."""
    met = np.flatnonzero((operations.meeting >= 0) & (operations.side == TOGETHER))
    if not len(met):
        return None
    ranks, rank = np.unique(operations.rank, return_inverse=True)
    late = _lateness(rank[met], operations.meeting[met], operations.end_ns[met], len(ranks))
    if late is None:
        return None
    moved = operations.kept(np.arange(len(operations)))
    shift = np.rint(late).astype(np.int64)[rank]
    moved.begin_ns, moved.end_ns = moved.begin_ns - shift, moved.end_ns - shift
    moved.notes = [
        *operations.notes,
        f"clocks differ by up to {np.ptp(late) * 1e-6:.3g} ms: set by the ends of collectives",
    ]
    return moved


def _lateness(rank: Ints, meeting: Ints, end_ns: Ints, ranks: int) -> Floats | None:
    """Of each rank, the least squares of what it is late in each group; the first one is 0."""
    number, count = numbers_of(meeting)
    sizes = np.bincount(number, minlength=count)
    end = (end_ns - int(end_ns.min())).astype(np.float64)
    apart = end - (np.bincount(number, end, count) / sizes)[number]
    marks = np.random.default_rng(1).random(ranks)
    group, groups = numbers_of(
        np.unique(np.bincount(number, marks[rank], count).round(9), return_inverse=True)[1][number]
    )
    pair, pairs = numbers_of(group, rank)
    if ranks + groups > UNKNOWNS_MAX:
        return None
    late = Groups(pair, pairs).medians(apart)
    first = np.zeros(pairs, np.int64)
    first[pair] = np.arange(len(pair))
    table = np.zeros((pairs + 1, ranks + groups))
    table[np.arange(pairs), rank[first]] = 1.0
    table[np.arange(pairs), ranks + group[first]] = -1.0
    table[pairs, 0] = 1.0
    solved = np.linalg.lstsq(table, np.r_[late, 0.0], rcond=None)[0]
    found: Floats = solved[:ranks]
    return found
