"""Steps at which a series of times went to another level and stayed there.

Pettitt's test (1979, A non-parametric approach to the change-point problem, Applied Statistics 28),
applied again to both sides of each change. It uses only the ranks of the values among each other,
so single outliers make no change.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import numpy as np

from .grid import Grid, Matrix, middle_of

__all__ = ["Change", "StageChange", "change_points", "changes_of_stages"]

SEGMENT_MIN = 8  # steps on each side
LEAST_CHANGE = 0.05  # of the level before
LEAST_SHARE = 0.005  # of a step
FALSE_CHANGES = 0.001


@dataclass(frozen=True)
class Change:
    """at: index of the first value of the new level. before, after: the medians on both sides, each
    up to the next change."""

    at: int
    before: float
    after: float


@dataclass(frozen=True)
class StageChange:
    """A stage that takes more or less time from `step` on: itself, without those inside it, as the
    median over ranks of a step."""

    stage: str
    step: int
    before_ms: float
    after_ms: float


def change_points(values: Matrix, chance: float) -> list[Change]:
    """The changes of a series without NaNs, in order. chance: of a false one, for the whole."""
    places = sorted(_split(values, 0, len(values), chance))
    edges = [0, *places, len(values)]
    levels = [
        float(np.median(values[first:last]))
        for first, last in itertools.pairwise(edges)
        if last > first
    ]
    return [Change(at, levels[i], levels[i + 1]) for i, at in enumerate(places)]


def _split(values: Matrix, first: int, last: int, chance: float) -> list[int]:
    count = last - first
    if count < 2 * SEGMENT_MIN:
        return []
    part = values[first:last]
    order = np.argsort(np.argsort(part, kind="stable"), kind="stable") + 1.0
    lengths = np.arange(1, count)
    statistic = np.abs(2 * np.cumsum(order)[:-1] - lengths * (count + 1))
    allowed = (lengths >= SEGMENT_MIN) & (lengths <= count - SEGMENT_MIN)
    best = int(np.argmax(np.where(allowed, statistic, -1)))
    exponent = -6 * float(statistic[best]) ** 2 / (count**3 + count**2)
    if 2 * math.exp(exponent) > chance:
        return []
    at = first + _where(part, best + 1)
    return [*_split(values, first, at, chance), at, *_split(values, at, last, chance)]


def _where(part: Matrix, about: int) -> int:
    """The place that parts two levels with the least absolute deviation; the test's own is drawn
    towards the middle."""
    deviations = [np.abs(part - np.median(side)) for side in (part[:about], part[about:])]
    before = np.concatenate([[0], np.cumsum(deviations[0])])
    after = np.concatenate([[0], np.cumsum(deviations[1][::-1])])[::-1]
    cost = (before + after)[SEGMENT_MIN : len(part) - SEGMENT_MIN + 1]
    return SEGMENT_MIN + int(np.argmin(cost))


def changes_of_stages(grid: Grid) -> list[StageChange]:
    """The changes of all stages, in the order of steps: those of at least 5 % of the stage that
    are at least 0.5 % of a step. The warm-up is left out."""
    step_ns = grid.middle_step_ns()
    found = []
    for path, name in grid.paths.items():
        (own,) = grid.of(path, "self_ns")
        series = middle_of(own[:, grid.warmup :], 0)
        known = np.flatnonzero(np.isfinite(series))
        for change in change_points(series[known], FALSE_CHANGES / len(grid.paths)):
            size = abs(change.after - change.before)
            if size < max(LEAST_CHANGE * change.before, LEAST_SHARE * step_ns):
                continue
            step = int(grid.steps[grid.warmup + known[change.at]])
            found.append(StageChange(name, step, change.before * 1e-6, change.after * 1e-6))
    return sorted(found, key=lambda change: (change.step, change.stage))
