"""Steps that begin at one moment on all ranks, where each rank marks its own.

Between two steps the ranks are apart: one that is late at the end of a step begins the next one
late, too, and in the times from the first begin to the last end that counts twice. So each step is
taken from the last collective of all ranks to that of the next step: they add up to the time that
passed. What a rank does after the last collective counts with the next step. Between two windows of
steps nothing was recorded: what is before the first such collective of a window is left out.
"""

from __future__ import annotations

import numpy as np

from .operations import COLUMNS, TOGETHER, Flags, Ints, Operations, number_rows

STEPS_MIN = 3
APART_LEAST = 0.5  # of a usual step: marks of one window are closer, windows usually are not


def with_common_steps(operations: Operations) -> Operations | None:
    """The operations in such steps; None where a step has no such collective, or fewer than three
    steps were left. operations: in order, by one clock."""
    steps = np.unique(operations.step)
    met = np.flatnonzero((operations.meeting >= 0) & (operations.side == TOGETHER))
    follows = _follows(steps, operations.marked_ns)
    if np.count_nonzero(follows) < STEPS_MIN or not len(met):
        return None
    ranks = len(np.unique(operations.rank))
    number, count = number_rows(operations.meeting[met])
    pair, pairs = number_rows(number, operations.rank[met])
    seen = np.zeros(pairs, np.int64)
    seen[pair] = number
    of_all = np.bincount(seen, minlength=count) == ranks
    start = np.full(count, np.iinfo(np.int64).min)
    np.maximum.at(start, number, operations.begin_ns[met])
    step = np.zeros(count, np.int64)
    step[number] = np.searchsorted(steps, operations.step[met])
    last = np.full(len(steps), -1)
    for one in np.flatnonzero(of_all)[np.argsort(start[of_all], kind="stable")].tolist():
        last[step[one]] = one
    if ranks < 2 or (last < 0).any() or (np.diff(start[last]) <= 0).any():
        return None
    is_cut = np.zeros(len(operations), np.bool_)
    is_cut[met] = np.isin(number, last)
    return _cut(operations, steps, follows, start[last], is_cut)


def _follows(steps: Ints, marked_ns: dict[int, dict[int, tuple[int, int]]]) -> Flags:
    """Which steps begin, on all ranks, where the one before them in the files ends."""
    lengths = [end - begin for marks in marked_ns.values() for begin, end in marks.values()]
    apart = APART_LEAST * float(np.median(lengths)) if lengths else 0.0
    follows = np.zeros(len(steps), np.bool_)
    follows[1:] = np.diff(steps) == 1
    for place in np.flatnonzero(follows).tolist():
        before, step = steps[place - 1 : place + 1].tolist()
        gaps = [
            marks[step][0] - marks[before][1]
            for marks in marked_ns.values()
            if step in marks and before in marks
        ]
        follows[place] = max(gaps, default=0) <= apart
    return follows


def _cut(
    operations: Operations, steps: Ints, follows: Flags, cuts: Ints, is_cut: Flags
) -> Operations:
    """follows: the steps that are kept. cuts: when all ranks have come, in each step. is_cut: the
    rows that meet there: they begin the next step, and what they call ends the one before."""
    place = np.searchsorted(steps, operations.step)
    after = np.where(is_cut, True, operations.begin_ns >= cuts[place])
    early = (place > 0) & (operations.begin_ns < cuts[np.maximum(place - 1, 0)])
    place = place + after - early
    calls = operations.kept(is_cut)
    calls.end_ns = calls.begin_ns
    calls.meeting = np.full(len(calls), -1)
    used, name = np.unique(calls.name, return_inverse=True)
    calls.name = len(operations.names) + name
    names = [f"call of {operations.names[one]}" for one in used.tolist()]
    whole = operations.kept(np.arange(len(operations)))
    begins = cuts[np.maximum(place - 1, 0)]
    whole.begin_ns = np.where(is_cut, begins, operations.begin_ns)
    ends = cuts[np.minimum(place, len(cuts) - 1)]
    whole.end_ns = np.maximum(np.minimum(operations.end_ns, ends), whole.begin_ns)
    for column in COLUMNS:
        setattr(whole, column, np.concatenate([getattr(whole, column), getattr(calls, column)]))
    place = np.concatenate([place, place[is_cut] - 1])
    whole.step = steps[np.minimum(place, len(steps) - 1)]
    whole.names, whole.marked_ns = (*operations.names, *names), {}
    inside = np.r_[follows, False][place]
    return whole.kept(inside).in_order()
