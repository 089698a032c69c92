"""The order in which a graph is replayed: levels of nodes, found once."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .operations import Flags, Ints


class CannotReplay(ValueError):
    """The times are not those of a run; the text says why."""


@dataclass
class Slices:
    """What one kind of value is computed from, in the order of computing. item: which node or
    meeting each place has. source: places of values that are needed; first: where those of a place
    begin in `source`. bounds: places of each level."""

    item: Ints
    source: Ints
    first: Ints
    bounds: Ints

    def level(self, index: int) -> tuple[int, int]:
        return int(self.bounds[index]), int(self.bounds[index + 1])


@dataclass
class Order:
    """starts: from ends (place 0 is the begin of the step); meetings: from starts; alone, joint:
    ends from starts, of nodes that wait for nobody, and from meetings. end_place: of each node
    among the ends."""

    starts: Slices
    meetings: Slices
    alone: Slices
    joint: Slices
    start_place: Ints
    end_place: Ints
    levels: int


def find_order(
    nodes: int, src: Ints, dst: Ints, member: Ints, meeting: Ints, meetings: int, waits: Flags
) -> Order:
    """src, dst: edges between nodes. member, meeting: who takes part in what, sorted by meeting.
    CannotReplay where something would have to happen before itself."""
    level, met = _levels(nodes, src, dst, member, meeting, meetings, waits)
    waiting = np.zeros(nodes, np.bool_)
    waiting[member[waits]] = True
    done = level.copy()
    np.maximum.at(done, member[waits], met[meeting[waits]])
    count = int(max(level.max(initial=-1), met.max(initial=-1), done.max(initial=-1))) + 1
    starts = np.argsort(level, kind="stable").astype(np.int32)
    meets = np.argsort(met, kind="stable").astype(np.int32)
    # Within a level those that wait for nobody end first.
    ends = np.argsort(2 * done + waiting, kind="stable").astype(np.int32)
    start_place, meeting_place = _places(starts), _places(meets)
    end_place = _places(ends) + 1
    alone_items = ends[~waiting[ends]]
    joint_items = ends[waiting[ends]]
    edge_source = np.r_[end_place[src], np.zeros(nodes, np.int32)]
    edge_owner = np.r_[start_place[dst], np.arange(nodes, dtype=np.int32)]
    has_edge = np.zeros(nodes, np.bool_)
    has_edge[start_place[dst]] = True
    kept = np.r_[np.ones(len(src), np.bool_), ~has_edge]
    joint_place = np.full(nodes, -1, np.int32)
    joint_place[joint_items] = np.arange(len(joint_items))
    return Order(
        starts=_slices(starts, edge_source[kept], edge_owner[kept], level, count),
        meetings=_slices(meets, start_place[member], meeting_place[meeting], met, count),
        alone=_slices(
            alone_items, start_place[alone_items], np.arange(len(alone_items)), done, count
        ),
        joint=_slices(
            joint_items, meeting_place[meeting[waits]], joint_place[member[waits]], done, count
        ),
        start_place=start_place, end_place=end_place, levels=count,
    )  # fmt: skip


def _places(items: Ints) -> Ints:
    found = np.empty(len(items), np.int32)
    found[items] = np.arange(len(items), dtype=np.int32)
    return found


def _slices(items: Ints, source: Ints, owner: Ints, level: Ints, count: int) -> Slices:
    by_owner = np.argsort(owner, kind="stable")
    first = np.searchsorted(owner[by_owner], np.arange(len(items) + 1))
    bounds = np.searchsorted(level[items], np.arange(count + 1))
    return Slices(
        items.astype(np.int32), source[by_owner].astype(np.int32), first.astype(np.int32), bounds
    )


def _levels(
    nodes: int, src: Ints, dst: Ints, member: Ints, meeting: Ints, meetings: int, waits: Flags
) -> tuple[Ints, Ints]:
    """The level of each node's start and of each meeting. Level by level those are taken for which
    nothing is missing any more."""
    out_first, out = _grouped(src, dst, nodes)
    of_first, of = _grouped(member, meeting, nodes)
    in_first, inside = _grouped(meeting[waits], member[waits], meetings)
    missing = np.bincount(dst, minlength=nodes)
    absent = np.bincount(meeting, minlength=meetings)
    pending = np.bincount(member[waits], minlength=nodes)
    level, met = np.full(nodes, -1, np.int32), np.full(meetings, -1, np.int32)
    current = np.flatnonzero(missing == 0)
    at = 0
    while len(current):
        level[current] = at
        ended = current[pending[current] == 0]
        complete = _lowered(absent, of[_ranges(of_first, current)])
        met[complete] = at
        freed = _lowered(pending, inside[_ranges(in_first, complete)])
        ended = np.concatenate([ended, freed])
        current = _lowered(missing, out[_ranges(out_first, ended)])
        at += 1
    if (level < 0).any():
        raise CannotReplay("operations end before what they wait for has begun: clocks differ")
    return level, met


def _grouped(owner: Ints, item: Ints, count: int) -> tuple[Ints, Ints]:
    by_owner = np.argsort(owner, kind="stable")
    first = np.searchsorted(owner[by_owner], np.arange(count + 1)).astype(np.int32)
    return first, item[by_owner]


def _ranges(first: Ints, owners: Ints) -> Ints:
    """The indices first[o] … first[o + 1] - 1 of all owners."""
    begins = first[owners]
    lengths = first[owners + 1] - begins
    total = int(lengths.sum())
    shift = np.repeat(begins - (np.cumsum(lengths) - lengths), lengths)
    found: Ints = np.arange(total) + shift
    return found


def _lowered(counts: Ints, items: Ints) -> Ints:
    """Takes one off for each item; those that have reached 0, once each."""
    np.subtract.at(counts, items, 1)
    zero: Ints = items[counts[items] == 0]
    place = np.arange(len(zero))
    counts[zero] = place  # the last one of several equal ones stays
    zero = zero[counts[zero] == place]
    counts[zero] = 0
    return zero
