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
