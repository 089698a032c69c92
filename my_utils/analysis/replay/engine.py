"""Replaying a graph: when everything would have happened if its parts took other times, and which
chain of parts was the longest."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .graph import Graph, Weights
from .levels import Slices
from .operations import Floats, Ints


@dataclass
class Times:
    """When things happen, in ns from the begin of their step, by place (see `levels.Order`). ends
    has the begin of the step, 0.0, at place 0."""

    starts: Floats
    meetings: Floats
    ends: Floats


def replay(graph: Graph, weights: Weights) -> Times:
    """The times of all operations with these weights."""
    order = graph.order
    starts = weights.gap[order.starts.item]
    meetings = weights.transfer[order.meetings.item]
    own_alone = weights.own[order.alone.item]
    own_joint = weights.own[order.joint.item]
    ends = np.empty(len(starts) + 1)
    ends[0] = 0.0
    place = 1
    for level in range(order.levels):
        _add_latest(starts, order.starts, level, ends)
        _add_latest(meetings, order.meetings, level, starts)
        for slices, own, source in (
            (order.alone, own_alone, starts),
            (order.joint, own_joint, meetings),
        ):
            low, high = slices.level(level)
            if low < high:
                ends[place : place + high - low] = (
                    _latest(slices, low, high, source) + own[low:high]
                )
                place += high - low
    return Times(starts, meetings, ends)


def _add_latest(values: Floats, slices: Slices, level: int, source: Floats) -> None:
    low, high = slices.level(level)
    if low < high:
        values[low:high] += _latest(slices, low, high, source)


def _latest(slices: Slices, low: int, high: int, source: Floats) -> Floats:
    """The latest of what each place needs."""
    begin, end = int(slices.first[low]), int(slices.first[high])
    found = source[slices.source[begin:end]]
    if end - begin == high - low:
        return found
    return np.maximum.reduceat(found, slices.first[low:high] - begin)


def lengths(graph: Graph, times: Times) -> Floats:
    """How long each step takes."""
    ends = times.ends[graph.order.end_place]
    firsts = np.searchsorted(graph.step, np.arange(len(graph.steps)))
    return np.maximum.reduceat(ends, firsts)


# --- the longest chain ---


@dataclass
class Chain:
    """What is on it: nodes with their own time, nodes with the time before them, meetings."""

    own: Ints
    gap: Ints
    transfer: Ints


def critical_chain(graph: Graph, times: Times) -> Chain:
    """The longest chain of each step: taking work off saves no more than is taken off it.

    Walks back from the end of each step to what came last, all steps at once.
    """
    order = graph.order
    alone_place = np.full(len(graph.rank), -1)
    alone_place[order.alone.item] = np.arange(len(order.alone.item))
    joint_place = np.full(len(graph.rank), -1)
    joint_place[order.joint.item] = np.arange(len(order.joint.item))
    node_of_end = np.empty(len(times.ends), np.int64)
    node_of_end[order.end_place] = np.arange(len(graph.rank))
    own, gap, transfer = [], [], []
    is_last = times.ends[order.end_place] == lengths(graph, times)[graph.step]
    latest = np.flatnonzero(is_last)
    nodes = latest[np.searchsorted(graph.step[latest], np.arange(len(graph.steps)))]
    while len(nodes):
        own.append(nodes)
        waiting = joint_place[nodes] >= 0
        starts = [order.start_place[nodes[~waiting]]]
        if waiting.any():
            meetings = _last_to_come(order.joint, joint_place[nodes[waiting]], times.meetings)
            transfer.append(order.meetings.item[meetings])
            starts.append(_last_to_come(order.meetings, meetings, times.starts))
        places = np.concatenate(starts)
        gap.append(order.starts.item[places])
        ends = _last_to_come(order.starts, places, times.ends)
        nodes = node_of_end[ends[ends > 0]]
    return Chain(*(np.concatenate([np.zeros(0, np.int64), *one]) for one in (own, gap, transfer)))


def _last_to_come(slices: Slices, places: Ints, source: Floats) -> Ints:
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
