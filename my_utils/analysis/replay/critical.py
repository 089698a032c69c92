"""The longest chain of each step: taking work off saves no more than is taken off it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .engine import Times
from .graph import Graph
from .levels import Slices
from .operations import Floats, Ints


@dataclass
class Chain:
    """What lies on it: nodes with their own time, nodes with the time before them, meetings."""

    own: Ints
    gap: Ints
    transfer: Ints


def critical_chain(graph: Graph, times: Times) -> Chain:
    """Walks back from the end of each step to what came last, all steps at once."""
    order = graph.order
    alone_place = np.full(len(graph.rank), -1)
    alone_place[order.alone.item] = np.arange(len(order.alone.item))
    joint_place = np.full(len(graph.rank), -1)
    joint_place[order.joint.item] = np.arange(len(order.joint.item))
    node_of_end = np.empty(len(times.ends), np.int64)
    node_of_end[order.end_place] = np.arange(len(graph.rank))
    own, gap, transfer = [], [], []
    nodes = _last_nodes(graph, times)
    while len(nodes):
        own.append(nodes)
        waiting = joint_place[nodes] >= 0
        starts = [order.start_place[nodes[~waiting]]]
        if waiting.any():
            meetings = _latest(order.joint, joint_place[nodes[waiting]], times.meetings)
            transfer.append(order.meetings.item[meetings])
            starts.append(_latest(order.meetings, meetings, times.starts))
        places = np.concatenate(starts)
        gap.append(order.starts.item[places])
        ends = _latest(order.starts, places, times.ends)
        nodes = node_of_end[ends[ends > 0]]
    return Chain(*(np.concatenate([np.zeros(0, np.int64), *one]) for one in (own, gap, transfer)))


def _last_nodes(graph: Graph, times: Times) -> Ints:
    ends = times.ends[graph.order.end_place]
    firsts = np.searchsorted(graph.step, np.arange(len(graph.steps)))
    latest = np.flatnonzero(ends == np.maximum.reduceat(ends, firsts)[graph.step])
    return latest[np.searchsorted(graph.step[latest], np.arange(len(graph.steps)))]


def _latest(slices: Slices, places: Ints, source: Floats) -> Ints:
    """Of what each place needs, the place of the value that comes last."""
    begins = slices.first[places]
    lengths = slices.first[places + 1] - begins
    firsts = np.cumsum(lengths) - lengths
    needed = slices.source[np.arange(int(lengths.sum())) + np.repeat(begins - firsts, lengths)]
    values = source[needed]
    latest = np.maximum.reduceat(values, firsts)
    is_latest = np.flatnonzero(values == np.repeat(latest, lengths))
    owner = np.repeat(np.arange(len(places)), lengths)[is_latest]
    found: Ints = needed[is_latest[np.searchsorted(owner, np.arange(len(places)))]]
    return found
