"""Meetings that nobody recorded: some come early and leave late, others the other way round.

Looked for are groups whose members all leave an operation, or begin one, after the last of them was
there, soon after, and in nearly all steps in which they came clearly apart.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np

from .graph import Graph
from .operations import COLUMNS, TOGETHER, Flags, Floats, Ints, Operations, number_rows

PART_MIN = 0.002  # of a step: what takes less is not looked at
SHARE = 0.97  # of the steps in which members come apart
APART = 5.0  # tolerances
SOON = 0.25  # of how far they come apart: so soon after the last one the first one leaves
LAST_STAYS = 0.5  # of the same: so long the last one stays at most


@dataclass
class _Found:
    """rows: nodes that meet, and in which meeting each does. before: in the time before them."""

    nodes: Ints
    meeting: Ints
    before: bool


def with_unrecorded(operations: Operations, graph: Graph) -> Operations | None:
    """The operations with these meetings, None where none was found."""
    groups = _groupings(operations, graph)
    found = [
        *_search(graph, groups, graph.weights.own, before=False),
        *_search(graph, groups, graph.weights.gap, before=True),
    ]
    return _added(operations, graph, found) if found else None


def _groupings(operations: Operations, graph: Graph) -> list[Ints]:
    """Ways to part the ranks, the coarsest first: a number for each rank, by its number."""
    size = int(graph.rank.max()) + 1
    ranks = np.unique(graph.rank)
    found = [np.zeros(size, np.int64)]
    if all(rank in operations.stages for rank in ranks.tolist()):
        stage, place = np.zeros(size, np.int64), np.zeros(size, np.int64)
        seen: dict[int, itertools.count[int]] = {}
        for rank in ranks.tolist():
            stage[rank] = operations.stages[rank]
            place[rank] = next(seen.setdefault(operations.stages[rank], itertools.count()))
        found += [stage, place]
    return found


def _search(graph: Graph, groupings: list[Ints], part: Floats, before: bool) -> list[_Found]:
    """part: own times or gaps, in which the wait would be."""
    kind, kinds = graph.kind, graph.kinds
    total = np.bincount(kind, part, kinds) / len(graph.steps)
    members = np.bincount(kind, minlength=kinds) / len(graph.steps)
    asked = total >= PART_MIN * graph.step_ns.mean() * np.maximum(members, 1.0)
    if not before:
        waiting = np.bincount(kind[graph.meets], minlength=kinds) > 0
        asked &= ~waiting
    by_kind = np.argsort(kind, kind="stable")
    firsts = np.searchsorted(kind[by_kind], np.arange(kinds + 1))
    found = []
    for one in np.flatnonzero(asked).tolist():
        nodes = by_kind[firsts[one] : firsts[one + 1]]
        found += _of_kind(graph, groupings, nodes, before)
    return found


def _of_kind(graph: Graph, groupings: list[Ints], nodes: Ints, before: bool) -> list[_Found]:
    found: list[_Found] = []
    for grouping in groupings:
        group = grouping[graph.rank[nodes]]
        meeting, meetings = number_rows(group, graph.step[nodes])
        good = _those_that_meet(graph, nodes, group, meeting, meetings, before)
        if good.any():
            found.append(_Found(nodes[good], meeting[good], before))
            if good.all():
                break
    return found


def _those_that_meet(
    graph: Graph, nodes: Ints, group: Ints, meeting: Ints, meetings: int, before: bool
) -> Flags:
    came = graph.begin_ns[nodes] - (graph.weights.gap[nodes] if before else 0.0)
    left = graph.begin_ns[nodes] if before else graph.end_ns[nodes]
    order = np.argsort(meeting, kind="stable")
    firsts = np.searchsorted(meeting[order], np.arange(meetings))
    last = np.maximum.reduceat(came[order], firsts)
    apart = last - np.minimum.reduceat(came[order], firsts)
    soonest = np.minimum.reduceat(left[order], firsts) - last
    is_last = came >= last[meeting]
    stays = np.zeros(meetings)
    stays[meeting[is_last]] = (left - last[meeting])[is_last]
    of_group = np.zeros(meetings, np.int64)
    of_group[meeting] = group
    clear = apart > APART * graph.tolerance_ns
    fits = clear & (soonest >= -graph.tolerance_ns)
    size = int(group.max()) + 1
    asked = np.bincount(of_group[clear], minlength=size)
    agreed = np.bincount(of_group[fits], minlength=size)
    width = np.bincount(of_group[fits], apart[fits], size)
    after = np.bincount(of_group[fits], soonest[fits], size)
    stayed = np.bincount(of_group[fits], stays[fits], size)
    good = (asked >= max(2, len(graph.steps) // 4)) & (agreed >= SHARE * asked)
    good &= (after <= SOON * width) & (stayed <= LAST_STAYS * width)
    return np.asarray(good[group], np.bool_)


def _added(operations: Operations, graph: Graph, found: list[_Found]) -> Operations:
    """Own waits turn rows into members; waits before a row become separate rows."""
    base = int(operations.meeting.max(initial=-1)) + 1
    meeting, side = operations.meeting.copy(), operations.side.copy()
    extra: list[Operations] = []
    names = list(operations.names)
    kinds: set[str] = set()
    for one in found:
        kinds.add(f"{'before ' if one.before else ''}{graph.names[graph.name[one.nodes[0]]]}")
        at = graph.node_rows[one.nodes]
        if not one.before:
            meeting[at] = base + one.meeting
            side[at] = TOGETHER
        else:
            names.append(f"wait before {graph.names[graph.name[one.nodes[0]]]}")
            name = names.index(names[-1])
            extra.append(_waits(operations, graph, one, at, base, name))
        base += int(one.meeting.max()) + 1
    more = operations.kept(np.arange(len(operations)))
    more.meeting, more.side = meeting, side
    for column in COLUMNS:
        parts = [getattr(more, column), *(getattr(one, column) for one in extra)]
        setattr(more, column, np.concatenate(parts))
    more.names, more.inferred = tuple(names), tuple(sorted(kinds))
    return more


def _waits(
    operations: Operations, graph: Graph, found: _Found, at: Ints, base: int, name: int
) -> Operations:
    rows = operations.kept(at)
    gap = np.rint(np.maximum(graph.weights.gap[found.nodes], 0.0)).astype(np.int64)
    rows.end_ns = rows.begin_ns.copy()
    rows.begin_ns = rows.begin_ns - gap
    rows.name = np.full(len(at), name)
    rows.meeting = base + found.meeting
    rows.side = np.full(len(at), TOGETHER)
    return rows
