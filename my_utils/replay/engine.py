"""Replaying a graph: when everything would have happened if its parts took other times."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .graph import Graph, Weights
from .levels import Slices
from .operations import Floats


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
    gap = weights.gap[order.starts.item]
    transfer = weights.transfer[order.meetings.item]
    own_alone = weights.own[order.alone.item]
    own_joint = weights.own[order.joint.item]
    starts, meetings = np.empty(len(gap)), np.empty(len(transfer))
    ends = np.empty(len(gap) + 1)
    ends[0] = 0.0
    place = 1
    for level in range(order.levels):
        _fill(starts, gap, order.starts, level, ends)
        _fill(meetings, transfer, order.meetings, level, starts)
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


def _fill(values: Floats, added: Floats, slices: Slices, level: int, source: Floats) -> None:
    low, high = slices.level(level)
    if low < high:
        np.add(_latest(slices, low, high, source), added[low:high], out=values[low:high])


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
