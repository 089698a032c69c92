"""Stages that took more or less time from a step on, as the median over ranks."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ..verdict.change_points import SEGMENT_MIN, Series, change_points
from ..verdict.quantiles import median
from ..verdict.result import Finding
from ..verdict.run_data import RunData
from ..verdict.slow_ranks import taken_ns

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


def changes_of_stages(
    run: RunData, warmup: int, findings: Sequence[Finding] = ()
) -> list[StageChange]:
    """The changes of all stages, in the order of steps: those of at least 5 % of the stage that
    are at least 0.5 % of a step. The warm-up is left out. findings: the step of one that is "slower
    since" in a stage is that of the stage's change."""
    step_ns = float(median(run.step_ns[:, warmup:]))
    known_since = {one.stage: one.since_step for one in findings if one.kind == "slower since"}
    found = []
    for stage, name in enumerate(run.stages):
        series = median(taken_ns(run, stage)[:, warmup:], 0)
        known = np.flatnonzero(np.isfinite(series))
        steps, series = run.steps[warmup + known], series[known]
        places = [one.at for one in change_points(series, FALSE_CHANGES / len(run.stages))]
        if (since := known_since.get(name)) is not None:
            places = _with(places, int(np.searchsorted(steps, since)))
        for at, before, after in _levels(series, places):
            if abs(after - before) >= max(LEAST_CHANGE * before, LEAST_SHARE * step_ns):
                found.append(StageChange(name, int(steps[at]), before * 1e-6, after * 1e-6))
    return sorted(found, key=lambda change: (change.step, change.stage))


def _with(places: Sequence[int], at: int) -> list[int]:
    """The places with this one, in place of those that are as good as the same."""
    return sorted([*(one for one in places if abs(one - at) >= SEGMENT_MIN), at])


def _levels(series: Series, places: Sequence[int]) -> Iterator[tuple[int, float, float]]:
    """Of each place, what the series is before and from there on, up to the next ones."""
    parts = np.split(series, places)
    for at, (before, after) in zip(places, itertools.pairwise(parts), strict=True):
        if len(before) and len(after):
            yield at, float(np.median(before)), float(np.median(after))
