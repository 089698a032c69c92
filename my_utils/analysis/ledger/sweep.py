"""Which stage a thread is in at each moment between its first stage and its last.

Where its device has times of its own, a moment belongs to the stage that the device is in, as
`verdict.device_cells` decides it: the host's stage counts only while the device waits for it.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ..verdict.device_cells import OnDevice

Integers = npt.NDArray[np.int64]


class Segments(NamedTuple):
    """What lies between one begin or end of a stage and the next one, in the order of time, without
    gaps. begin_ns: one more than there are segments. owner: the innermost stage that is open, as
    its place among the rows; -1 in none. since: the stage that began last."""

    begin_ns: Integers
    owner: Integers
    since: Integers


def cut_segments(begin_ns: Integers, end_ns: Integers, depth: Integers) -> Segments:
    """depth: of each stage how many are around it. Those of one thread nest. Where they do not,
    each moment still belongs to one of them, or to none.

    >>> found = cut_segments(np.array([0, 2, 9]), np.array([7, 4, 10]), np.array([0, 1, 0]))
    >>> found.begin_ns.tolist(), found.owner.tolist()
    ([0, 2, 4, 7, 9, 10], [0, 1, 0, -1, 2])
    """
    count = len(begin_ns)
    parents = _parents(begin_ns, depth)
    if depth.max(initial=0):
        ends = np.lexsort((-depth, end_ns))
        begins = np.lexsort((depth, begin_ns))
    else:
        ends, begins = (np.argsort(moments, kind="stable") for moments in (end_ns, begin_ns))
    times = np.concatenate([end_ns[ends], begin_ns[begins]])
    order = np.argsort(times, kind="stable")  # at one moment ends come first
    is_begin = order >= count
    stages = np.concatenate([ends, begins])[order]
    owner = np.where(is_begin, stages, parents[stages])[:-1]
    latest = np.maximum.accumulate(np.where(is_begin, np.arange(2 * count), -1))
    since = stages[np.maximum(latest, 0)][:-1]
    return Segments(times[order], owner, since)


def segments_on_device(found: OnDevice, begin_ns: Integers, origin_ns: int) -> Segments:
    """The same, on the device's axis. begin_ns: of the stages, on the host's; origin_ns: of the
    edges that were found."""
    order = np.argsort(begin_ns, kind="stable")
    edges: Integers = found.edges + origin_ns
    begun = np.searchsorted(begin_ns[order], edges[:-1], "right")
    owner = np.where(found.by_device, found.device, found.host)
    return Segments(edges, owner, order[np.maximum(begun - 1, 0)])


def _parents(begin_ns: Integers, depth: Integers) -> Integers:
    """Of each stage the place of the one around it, -1 where there is none."""
    parents = np.full(len(begin_ns), -1)
    deepest = int(depth.max(initial=0))
    if not deepest:
        return parents
    order = np.lexsort((depth, begin_ns))
    depths = depth[order]
    places = np.arange(len(order))
    for level in range(1, deepest + 1):
        above = np.maximum.accumulate(np.where(depths == level - 1, places, -1))
        here = (depths == level) & (above >= 0)
        parents[order[here]] = order[above[here]]
    return parents
