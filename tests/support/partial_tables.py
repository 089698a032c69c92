"""What a simulated run looks like where its source did not record all of it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from my_utils.analysis.replay.operations import TOGETHER, Operations

from .programs import COMPUTE

INNER = ("tp_all_reduce", "all_to_all", "all_gather")


def _copy(operations: Operations) -> Operations:
    return operations.kept(np.arange(len(operations)))


def _named(operations: Operations, names: tuple[str, ...]) -> np.ndarray:
    wanted = [at for at, name in enumerate(operations.names) if name in names]
    return np.isin(operations.name, wanted)


def no_groups(operations: Operations) -> Operations:
    """All rows are there, but of collectives nobody knows who meets."""
    found = _copy(operations)
    found.meeting = np.where(found.side == TOGETHER, -1, found.meeting)
    return found


def no_peers(operations: Operations) -> Operations:
    """The same of sends and receives."""
    found = _copy(operations)
    found.meeting = np.where(found.side == TOGETHER, found.meeting, -1)
    return found


def no_meetings(operations: Operations) -> Operations:
    return no_peers(no_groups(operations))


def inner_dropped(operations: Operations) -> Operations:
    """Collectives inside forward and backward have no rows: time passes instead."""
    return operations.kept(~_named(operations, INNER))


def inner_inside(operations: Operations) -> Operations:
    """They are inside what is before them on the stream of computing, as timers of stages see it,
    and parts of one name that follow each other are one."""
    found = _copy(operations).in_order()
    inner = _named(found, INNER)
    kept = np.ones(len(found), np.bool_)
    last: dict[tuple[int, int], int] = {}
    lanes = zip(
        found.step.tolist(), found.rank.tolist(), found.lane.tolist(), found.name.tolist(),
        strict=True,
    )  # fmt: skip
    for row, (step, rank, lane, name) in enumerate(lanes):
        if lane != COMPUTE:
            continue
        before = last.get((step, rank))
        if before is not None and (
            inner[row] or (found.name[before] == name and found.side[row] == TOGETHER
                           and found.meeting[row] < 0
                           and found.begin_ns[row] <= found.end_ns[before])
        ):  # fmt: skip
            found.end_ns[before] = max(found.end_ns[before], found.end_ns[row])
            kept[row] = False
        else:
            last[step, rank] = row
    return found.kept(kept & ~(inner & (found.lane != COMPUTE)))


def every_other_rank(operations: Operations) -> Operations:
    return operations.kept(operations.rank % 2 == 0)


def first_half(operations: Operations) -> Operations:
    return operations.kept(operations.rank < (operations.rank.max() + 1) // 2)


CONDITIONS: dict[str, Callable[[Operations], Operations]] = {
    "no groups": no_groups, "no peers": no_peers, "no meetings": no_meetings,
    "inner dropped": inner_dropped, "inner inside": inner_inside,
    "every other rank": every_other_rank, "first half": first_half,
}  # fmt: skip
