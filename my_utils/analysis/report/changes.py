"""Stages that took more or less time from a step on, as the median over ranks."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..verdict.change_points import change_points
from ..verdict.quantiles import median
from .grid import Grid

LEAST_CHANGE = 0.05  # of the level before
LEAST_SHARE = 0.005  # of a step
FALSE_CHANGES = 0.001


@dataclass(frozen=True)
class StageChange:
    """A stage that takes more or less time from `step` on: itself, without those inside it, as the
    median over ranks of a step."""

    stage: str
    step: int
    before_ms: float
    after_ms: float


def changes_of_stages(grid: Grid) -> list[StageChange]:
    """The changes of all stages, in the order of steps: those of at least 5 % of the stage that
    are at least 0.5 % of a step. The warm-up is left out."""
    step_ns = grid.middle_step_ns()
    found = []
    for path, name in grid.paths.items():
        (own,) = grid.of(path, "self_ns")
        series = median(own[:, grid.warmup :], 0)
        known = np.flatnonzero(np.isfinite(series))
        for change in change_points(series[known], FALSE_CHANGES / len(grid.paths)):
            size = abs(change.after - change.before)
            if size < max(LEAST_CHANGE * change.before, LEAST_SHARE * step_ns):
                continue
            step = int(grid.steps[grid.warmup + known[change.at]])
            found.append(StageChange(name, step, change.before * 1e-6, change.after * 1e-6))
    return sorted(found, key=lambda change: (change.step, change.stage))
