"""Finds steps at which a series of times changed to another level.

Pettitt's test (1979, A non-parametric approach to the change-point problem, Applied Statistics 28),
applied again to both sides of each change. It uses only the ranks of the values among each other,
so single outliers make no change.

Parts are split in the order of their length, the longest first, until no part has a change or the
work allowed is used up: a series of any length and shape ends, with its largest parts examined.
"""

from __future__ import annotations

import heapq
import itertools
import math
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

SEGMENT_MIN = 8  # steps on each side
VALUES_EXAMINED_MAX = 2_000_000  # of all parts together, beside the whole series

Series: TypeAlias = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Change:
    """at: index of the first value of the new level. before, after: the medians on both sides, each
    up to the next change."""

    at: int
    before: float
    after: float


def change_points(values: Series, chance: float) -> list[Change]:
    """The changes of a series without NaNs, in order. chance: of a false one, for the whole.

    >>> change_points(np.repeat([5.0, 9.0], [20, 30]), 0.001)
    [Change(at=20, before=5.0, after=9.0)]
    """
    parts = find_parts(values, chance)
    levels = [float(np.median(values[part])) for part in parts]
    return [Change(part.start, levels[i], levels[i + 1]) for i, part in enumerate(parts[1:])]


def find_parts(values: Series, chance: float) -> list[slice]:
    """The parts between the changes; none is empty."""
    edges = [0, *sorted(_places(values, chance)), len(values)]
    return [slice(first, last) for first, last in itertools.pairwise(edges) if last > first]


def largest_rise(values: Series, chance: float) -> int | None:
    """Where the series rises most; None where it does not rise."""
    rises = [one for one in change_points(values, chance) if one.after > one.before]
    most = max(rises, key=lambda one: one.after - one.before, default=None)
    return None if most is None else most.at


def _places(values: Series, chance: float) -> list[int]:
    found: list[int] = []
    parts = [(-len(values), 0)]  # a heap: the length, negative, and the begin
    examined = -len(values)
    while parts:
        length, first = heapq.heappop(parts)
        last = first - length
        examined += last - first
        if examined > VALUES_EXAMINED_MAX:
            break
        at = _change_in(values[first:last], chance)
        if at is None:
            continue
        found.append(first + at)
        heapq.heappush(parts, (-at, first))
        heapq.heappush(parts, (first + at - last, first + at))
    return found


def _change_in(part: Series, chance: float) -> int | None:
    count = len(part)
    if count < 2 * SEGMENT_MIN:
        return None
    order = _rank_values(part)
    lengths = np.arange(1, count)
    statistic = np.abs(2 * np.cumsum(order)[:-1] - lengths * (count + 1))
    best = SEGMENT_MIN - 1 + int(np.argmax(statistic[SEGMENT_MIN - 1 : count - SEGMENT_MIN]))
    exponent = -6 * float(statistic[best]) ** 2 / (float(count) ** 3 + float(count) ** 2)
    if 2 * math.exp(exponent) > chance:
        return None
    return _where(part, best + 1)


def _rank_values(part: Series) -> Series:
    """The rank of each value from 1 up, equal ones their mean: a level has no change in it."""
    places = np.argsort(part, kind="stable")
    ordered = part[places]
    firsts = np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1]])
    lasts = np.r_[firsts[1:], len(part)]
    ranks = np.empty(len(part))
    ranks[places] = np.repeat((firsts + lasts + 1) / 2, lasts - firsts)
    return ranks


def _where(part: Series, about: int) -> int:
    """The place that parts two levels with the least absolute deviation; the test's own is drawn
    towards the middle."""
    deviations = [np.abs(part - np.median(side)) for side in (part[:about], part[about:])]
    before = np.concatenate([[0], np.cumsum(deviations[0])])
    after = np.concatenate([[0], np.cumsum(deviations[1][::-1])])[::-1]
    cost = (before + after)[SEGMENT_MIN : len(part) - SEGMENT_MIN + 1]
    return SEGMENT_MIN + int(np.argmin(cost))
