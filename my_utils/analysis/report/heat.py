"""A matrix of ranks and steps, small enough to be drawn."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ...core.equality import same_fields
from .cells import Integers
from .grid import Grid, Matrix
from .stragglers import Straggler

RANKS_MAX, STEPS_MAX = 512, 1024


@dataclass
class Heat:
    """What ranks took over the median of their peers, in ms. stage: "" for the whole step.

    ranks and steps name the first of each row and column: where there are too many, the largest
    value of neighbours stands for them all.
    """

    stage: str
    ranks: Integers
    steps: Integers
    excess_ms: Matrix

    def __eq__(self, other: object) -> bool:
        return same_fields(self, other)


def heat_of(grid: Grid, sync: list[int], stragglers: list[Straggler]) -> Heat:
    """Of the stage of the most expensive straggler; without one, of all but what ranks wait in."""
    stage = stragglers[0].stage if stragglers else ""
    if stage:
        path = next(path for path, name in grid.paths.items() if name == stage)
        (took,) = grid.of(path, "self_ns")
    else:
        took = grid.busy_ns(sync)
    excess = grid.over_peers(took) * 1e-6
    rows = _firsts(len(grid.ranks), RANKS_MAX)
    columns = _firsts(len(grid.steps), STEPS_MAX)
    filled = np.where(np.isfinite(excess), excess, -np.inf)
    small = np.maximum.reduceat(np.maximum.reduceat(filled, rows, axis=0), columns, axis=1)
    small[np.isinf(small)] = np.nan
    return Heat(stage, grid.ranks[rows], grid.steps[columns], small)


def _firsts(count: int, most: int) -> Integers:
    parts = min(count, most)
    firsts: Integers = np.arange(parts) * count // parts
    return firsts
