"""From operations to a graph: what follows what, who waits for whom, and how long each part took.

A node is an operation; calls of one batch, which begin and end together, are one node. It begins
after the last node of its lane, and after that of each other lane which had always ended by then,
in all steps and on all ranks that do the same operations. A meeting begins when its last member
arrives; its transfer is the shortest stay after that, and what a member stays longer is its own
work.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np

from ...core.units import count_text
from .levels import CannotReplay, Order, find_order
from .operations import (
    RECEIVE,
    SEND,
    TOGETHER,
    Flags,
    Floats,
    Ints,
    Operations,
    count_before,
    number_rows,
)

TOLERANCE_NS = 500_000  # of time stamps; less where steps are short
TOLERANCE_SHARE = 2e-3  # of a step
LANES_MAX = 512  # each is compared with each
LANES_TIMES_NODES_MAX = 1 << 27  # each is four bytes, twice
SOMETIMES = 0.25  # so often at least a node begins after the stamped end of what it waits for
BLOCKS_SHARE = 0.9  # of the sends whose receiver came later: so many must have stayed until then


@dataclass
class Weights:
    """What the parts of a graph take, in ns. own, gap: of each node, the time in it and the time
    before it. transfer: of each meeting."""

    own: Floats
    gap: Floats
    transfer: Floats


@dataclass
class Graph:
    """All steps of a run. Nodes are sorted by step, rank and begin, and members by meeting; arrays
    of nodes have one value each. kind: the same (lane, name, occurrence in the step) on all ranks
    and in all steps; key: the same kind and rank. step: an index into `steps`. step_ns: from the
    first begin to the last end of each step. node_rows: the first row of each node. too_early:
    meetings that a member has left before the last one came."""

    rank: Ints
    step: Ints
    name: Ints
    kind: Ints
    kinds: int
    key: Ints
    keys: int
    names: tuple[str, ...]
    steps: Ints
    step_ns: Floats
    begin_ns: Floats
    end_ns: Floats
    meets: Flags
    meeting_step: Ints
    meeting_name: Ints
    member_node: Ints
    member_meeting: Ints
    weights: Weights
    tolerance_ns: float
    node_rows: Ints
    too_early: int
    edges: tuple[Ints, Ints]  # nodes, and those that follow them
    waits: Flags  # of the members

    @functools.cached_property
    def order(self) -> Order:
        """Found when it is first asked for."""
        return find_order(
            len(self.rank), *self.edges, self.member_node, self.member_meeting,
            len(self.meeting_name), self.waits,
        )  # fmt: skip


def build_graph(operations: Operations) -> Graph:
    """operations: sorted by step, rank, begin; see `Operations.in_order`. Asking for the order is a
    CannotReplay where their times contradict the order in which they must have happened."""
    rows = _Rows(operations)
    src, dst = _edges(rows)  # before the meetings: it corrects ends that were stamped late
    members = _Members(rows)
    at, node = rows.node_rows, members.node
    begin, end = rows.begin[at], rows.end[at]
    gap = begin - _last_end(rows.rank_begin[rows.segment[at]], src, dst, end)
    own = end - _ready(len(at), members, begin)
    graph = Graph(
        rank=_small(rows.rank[at]), step=rows.step[at], name=rows.node_name,
        kind=rows.kind, kinds=rows.kinds, key=rows.key, keys=rows.keys,
        names=rows.names, steps=rows.steps, step_ns=rows.step_ns, begin_ns=begin, end_ns=end,
        meets=np.zeros(len(at), np.bool_),
        meeting_step=rows.step[at[node[members.first]]],
        meeting_name=_small(members.name[members.first]),
        member_node=_small(node), member_meeting=_small(members.meeting),
        weights=Weights(
            _bounded(own, rows.tolerance), _bounded(gap, rows.tolerance), members.transfer
        ),
        tolerance_ns=rows.tolerance, node_rows=at,
        too_early=members.too_early, edges=(_small(src), _small(dst)), waits=members.waits,
    )  # fmt: skip
    graph.meets[node[members.waits]] = True
    return graph


def _bounded(values: Floats, tolerance: float) -> Floats:
    """Below nothing by rounding alone."""
    return np.where(np.abs(values) <= tolerance, values, np.maximum(values, 0.0))


def _small(values: Ints) -> Ints:
    """In half the memory."""
    return values.astype(np.int32)


class _Rows:
    """The rows with times relative to their step, and which node each belongs to."""

    def __init__(self, operations: Operations) -> None:
        self.rank = operations.rank
        self.lane = operations.lane
        self.name = operations.name
        self.side = operations.side
        self.meeting = operations.meeting
        step, count = number_rows(operations.step)
        self.step = _small(step)
        firsts = np.searchsorted(self.step, np.arange(count))
        self.steps = operations.step[firsts]
        origin = np.minimum.reduceat(operations.begin_ns, firsts)
        self.begin = (operations.begin_ns - origin[self.step]).astype(np.float64)
        self.end = (operations.end_ns - origin[self.step]).astype(np.float64)
        self.step_ns = np.maximum.reduceat(self.end, firsts)
        usual = float(np.median(self.step_ns))
        self.tolerance = min(float(TOLERANCE_NS), TOLERANCE_SHARE * usual)
        segment, self.segments = number_rows(self.step, self.rank)
        self.segment = _small(segment)
        self.rank_begin = self._rank_begins(operations.marked_ns, origin)
        self._join_batches(operations.names)
        self._name_nodes()
        self.is_late = np.isin(self.lane, operations.late_lanes) & (self.meeting >= 0)
        self.soonest = self._soonest()

    def _rank_begins(
        self, marked_ns: dict[int, dict[int, tuple[int, int]]], origin: Ints
    ) -> Floats:
        """When the step of each segment begins on its rank: where the source marks it, or else with
        the first operation of any rank. What ranks are apart then came about in the step before."""
        found = np.zeros(self.segments)
        if not marked_ns:
            return found
        firsts = np.searchsorted(self.segment, np.arange(self.segments))
        for segment, (rank, step) in enumerate(
            zip(self.rank[firsts].tolist(), self.step[firsts].tolist(), strict=True)
        ):
            mark = marked_ns.get(rank, {}).get(int(self.steps[step]))
            first = self.begin[firsts[segment]]
            found[segment] = first if mark is None else min(first, float(mark[0] - origin[step]))
        return found

    def _soonest(self) -> Floats:
        """When each row may have ended: where its end may be stamped late, as soon as all were
        there."""
        late = np.flatnonzero(self.is_late)
        number, count = number_rows(self.meeting[late])
        last = np.full(count, -np.inf)
        np.maximum.at(last, number, self.begin[late])
        soonest = self.end.copy()
        soonest[late] = np.minimum(soonest[late], last[number])
        return soonest

    def _join_batches(self, names: tuple[str, ...]) -> None:
        """Point-to-point calls of a rank that begin and end together are one node."""
        is_call = (self.side != TOGETHER) | (self.meeting >= 0)
        same = np.zeros(len(self.rank), np.bool_)
        same[1:] = (
            is_call[1:] & is_call[:-1] & (self.segment[1:] == self.segment[:-1])
            & (self.begin[1:] == self.begin[:-1]) & (self.end[1:] == self.end[:-1])
            & (self.end[1:] > self.begin[1:])
        )  # fmt: skip
        self.node_of = np.cumsum(~same, dtype=np.int32) - 1
        self.node_rows = _small(np.flatnonzero(~same))
        self.is_batch = same.copy()
        self.is_batch[:-1] |= same[1:]
        self.node_name = _small(self.name[self.node_rows])
        self.names = names
        if same.any():
            self._name_batches(same)

    def _name_batches(self, same: Flags) -> None:
        added: dict[tuple[int, int], int] = {}
        names = list(self.names)
        pairs, which = np.unique(
            np.stack([self.node_name[self.node_of[same]], self.name[same]]), axis=1,
            return_inverse=True,
        )  # fmt: skip
        for first, second in pairs.T.tolist():
            added[first, second] = len(names)
            names.append(f"{names[first]} + {names[second]}")
        found = np.array([added[first, second] for first, second in pairs.T.tolist()])
        self.node_name[self.node_of[same]] = found[which.ravel()]
        self.names = tuple(names)

    def _name_nodes(self) -> None:
        """The key under which a node is found again in other steps of the same shape."""
        at = self.node_rows
        inner, _ = number_rows(self.segment[at], self.lane[at], self.node_name)
        kind, self.kinds = number_rows(self.lane[at], self.node_name, count_before(inner))
        place = count_before(number_rows(self.segment[at], self.lane[at])[0])
        placed, places = number_rows(self.lane[at], self.node_name, place)
        marks = np.random.default_rng(0).integers(0, 1 << 62, places)
        firsts = np.searchsorted(self.segment[at], np.arange(self.segments))
        shape = np.add.reduceat(marks[placed], firsts)
        key, self.keys = number_rows(self.rank[at], kind)
        self.kind, self.key = _small(kind), _small(key)
        self.shape = _small(np.unique(shape, return_inverse=True)[1])[self.segment[at]]


class _Members:
    """The rows that meet others. transfer: of each meeting. waits: which members leave only when
    all have come; a sender that does not wait for its receiver is none of them."""

    def __init__(self, rows: _Rows) -> None:
        found = np.flatnonzero(rows.meeting >= 0)
        number, count = number_rows(rows.meeting[found])
        sizes = np.bincount(number, minlength=count)
        found = found[sizes[number] > 1]
        number, self.count = number_rows(rows.meeting[found])
        by_meeting = np.argsort(number, kind="stable")
        found, self.meeting = found[by_meeting], number[by_meeting]
        self.node = rows.node_of[found]
        self.name = rows.name[found]
        self.first = np.searchsorted(self.meeting, np.arange(self.count))
        begin, end, side = rows.begin[found], rows.end[found], rows.side[found]
        self.start = _reduced(np.maximum, begin, self.first)
        self.waits = side != SEND
        if (side == SEND).any():
            blocks = self._blocking(rows, found, begin, end, side)
            self.waits |= np.isin(self.name, blocks)
        stay = np.where(self.waits, end - self.start[self.meeting], np.inf)
        transfer = _reduced(np.minimum, stay, self.first)
        transfer[~np.isfinite(transfer)] = 0.0
        self.too_early = int(np.count_nonzero(transfer < -rows.tolerance))
        self.transfer = np.maximum(transfer, -rows.tolerance)
        if rows.is_batch[found].any():
            self._bound_batches(rows.is_batch[found])
        late = rows.is_late[found]  # what they stay longer is how late they were stamped
        ended = (self.start + self.transfer)[self.meeting]
        rows.end[found[late]] = np.minimum(end, ended)[late]

    def _blocking(self, rows: _Rows, found: Ints, begin: Floats, end: Floats, side: Ints) -> Ints:
        """The names of sends that wait for their receiver: of those whose receiver came later,
        nearly all stayed until then."""
        receives = side == RECEIVE
        came = np.full(self.count, -np.inf)
        came[self.meeting[receives]] = begin[receives]
        later = came[self.meeting]
        asked = (side == SEND) & (later > begin + rows.tolerance)
        alone = asked & ~rows.is_batch[found]
        asked = alone if alone.any() else asked
        stayed = asked & (end >= later - rows.tolerance)
        size = int(self.name.max(initial=0)) + 1
        all_of = np.bincount(self.name[asked], minlength=size)
        those = np.bincount(self.name[stayed], minlength=size)
        return np.flatnonzero((all_of > 0) & (those >= BLOCKS_SHARE * all_of))

    def _bound_batches(self, is_batch: Flags) -> None:
        """All members of a meeting may have stayed for other calls of their batches: then its own
        transfer is what this kind takes usually, at most."""
        hidden = np.bitwise_and.reduceat(is_batch | ~self.waits, self.first)
        name = self.name[self.first]
        for one in np.unique(name[hidden]):
            those = name == one
            usual = np.median(self.transfer[those])
            self.transfer[those & hidden] = np.minimum(self.transfer[those & hidden], usual)


def _reduced(how: np.ufunc, values: Floats, firsts: Ints) -> Floats:
    return how.reduceat(values, firsts) if len(firsts) else np.zeros(0)


def _edges(rows: _Rows) -> tuple[Ints, Ints]:
    """Nodes and those that follow them."""
    src, dst = _needed(*_ways(rows))
    kept = _not_by_chance(rows, src, dst)
    return src[kept], dst[kept]


def _not_by_chance(rows: _Rows, src: Ints, dst: Ints) -> Flags:
    """A receiver needs nothing of its rank, and a call to another rank no other call. So what had
    ended before it in another lane counts only where it began as soon as that had ended, in some
    step at least."""
    at = rows.node_rows
    lane = rows.lane[at]
    side = rows.side[at]
    doubtful = (side[dst] == RECEIVE) | ((side[dst] == SEND) & (side[src] != TOGETHER))
    doubtful &= lane[src] != lane[dst]
    kept: Flags = ~doubtful
    if not doubtful.any():
        return kept
    asked = np.flatnonzero(doubtful)
    slack = rows.begin[at][dst[asked]] - rows.end[at][src[asked]]
    same, count = number_rows(rows.key[dst[asked]], lane[src[asked]])
    least = np.full(count, np.inf)
    np.minimum.at(least, same, slack)
    kept[asked] = least[same] <= rows.tolerance
    return kept


def _ways(rows: _Rows) -> tuple[Ints, Ints, Ints]:
    """Of each lane and node, how many of the lane's rows the node follows, and the last of them;
    and the lane of each node."""
    at = rows.node_rows
    same_shape, groups = number_rows(rows.kind, rows.shape)
    by_group = np.argsort(same_shape, kind="stable")
    group_firsts = np.searchsorted(same_shape[by_group], np.arange(groups))
    lanes = np.unique(rows.lane)
    if len(lanes) > LANES_MAX or len(lanes) * len(at) > LANES_TIMES_NODES_MAX:
        those = f"{count_text(len(at), 'operation')} are in {count_text(len(lanes), 'lane')}"
        raise CannotReplay(
            f"{those}: a lane is a thread or a stream, with the same name on all ranks and in all "
            "steps"
        )
    known = np.zeros((len(lanes), len(at)), np.int32)
    target = np.full((len(lanes), len(at)), -1, np.int32)
    for index, lane in enumerate(lanes):
        count, starts, lane_rows = _ended_before(rows, lane, rows.end)
        least = np.minimum.reduceat(count[by_group], group_firsts)[same_shape]
        if rows.is_late[lane_rows].any():
            may_be, _, _ = _ended_before(rows, lane, rows.soonest)
            usual = _usual(rows, count)
            for most in (may_be, usual):
                most[:] = np.minimum.reduceat(most[by_group], group_firsts)[same_shape]
            least = np.maximum(least, np.minimum(may_be, usual))
            _end_in_time(rows, lane, count, least, starts, lane_rows)
        count = np.where(rows.lane[at] == lane, count, least)
        known[index] = count
        has = count > 0
        target[index, has] = rows.node_of[lane_rows[(starts + count)[has] - 1]]
    return known, target, _small(np.searchsorted(lanes, rows.lane[at]))


def _usual(rows: _Rows, count: Ints) -> Ints:
    """What nodes of the same kind have at least in SOMETIMES of all steps and ranks."""
    order = np.lexsort((count, rows.kind))
    firsts = np.searchsorted(rows.kind[order], np.arange(rows.kinds + 1))
    sizes = np.diff(firsts)
    at = firsts[:-1] + np.minimum(np.ceil((1 - SOMETIMES) * sizes).astype(np.int64), sizes - 1)
    usual: Ints = count[order][at][rows.kind]
    return usual


def _end_in_time(
    rows: _Rows, lane: int, count: Ints, least: Ints, starts: Ints, lane_rows: Ints
) -> None:
    """Ends rows that were stamped late when the first node that waits for them begins."""
    at = rows.node_rows
    for node in np.flatnonzero((rows.lane[at] != lane) & (count < least)).tolist():
        late = lane_rows[starts[node] + count[node] : starts[node] + least[node]]
        rows.end[late] = np.minimum(rows.end[late], rows.begin[at[node]])


def _ended_before(rows: _Rows, lane: int, end: Floats) -> tuple[Ints, Ints, Ints]:
    """Of each node: how many rows of the lane, in the order of their begins, had all ended when it
    began; where the rows of the lane begin in its step and rank; and these rows."""
    at = rows.node_rows
    of_lane = rows.lane == lane
    lane_rows = np.flatnonzero(of_lane)
    before = np.cumsum(of_lane, dtype=np.int32)[at] - of_lane[at]  # rows are sorted by begin
    firsts = np.searchsorted(rows.segment[lane_rows], np.arange(rows.segments))
    starts = _small(firsts)[rows.segment[at]]
    span = float(rows.step_ns.max() + 2 * rows.tolerance + 1)
    ends = np.maximum.accumulate(rows.segment[lane_rows] * span + end[lane_rows])
    latest = np.r_[-np.inf, ends][before]
    open_ = np.flatnonzero(latest > rows.segment[at] * span + rows.begin[at] + rows.tolerance)
    asked = rows.segment[at[open_]] * span + rows.begin[at[open_]] + rows.tolerance
    before[open_] = np.minimum(np.searchsorted(ends, asked, "right"), before[open_])
    return np.maximum(before - starts, 0), starts, lane_rows


def _needed(known: Ints, target: Ints, own_lane: Ints) -> tuple[Ints, Ints]:
    """The edges without those that follow from another edge of the same node."""
    lanes = len(known)
    previous = target[own_lane, np.arange(len(own_lane))]
    src, dst = [], []
    for lane in range(lanes):
        implied = (previous >= 0) & (own_lane != lane) & (known[lane, previous] >= known[lane])
        nodes = np.flatnonzero((target[lane] >= 0) & ~implied)
        for other in range(lanes):
            if other == lane:
                continue
            before = target[other, nodes]
            implied = (before >= 0) & (known[lane, before] >= known[lane, nodes])
            nodes = nodes[~implied]
        dst.append(nodes)
        src.append(target[lane, nodes])
    return np.concatenate(src), np.concatenate(dst)


def _last_end(rank_begin: Floats, src: Ints, dst: Ints, end: Floats) -> Floats:
    """When each node could have begun, at the earliest. rank_begin: where nothing is before it."""
    found = rank_begin.copy()
    if len(dst):
        order = np.argsort(dst, kind="stable")
        targets = dst[order]
        firsts = np.flatnonzero(np.r_[True, targets[1:] != targets[:-1]])
        found[targets[firsts]] = np.maximum.reduceat(end[src[order]], firsts)
    return found


def _ready(nodes: int, members: _Members, begin: Floats) -> Floats:
    """When each node could have ended, if it had nothing to do itself."""
    waits = members.waits
    met = members.start + members.transfer
    found = begin.copy()
    latest = np.full(nodes, -np.inf)
    np.maximum.at(latest, members.node[waits], met[members.meeting[waits]])
    found[np.isfinite(latest)] = latest[np.isfinite(latest)]
    return found
