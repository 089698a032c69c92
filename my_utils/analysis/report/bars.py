"""The bars of the page: the mean step by stages, and what each rank worked and waited.

Lengths are shares of the longest bar, so that the template only multiplies them by the width.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from ...core.colours import stage_colour
from ..verdict.kinds import UNTIMED
from ..verdict.quantiles import median
from ..verdict.run_data import Integers, Matrix, RunData

OTHERS = "other stages"
WAITING = "waiting for other ranks"
WAIT_COLOUR = "#b5bac2"
STAGES_MAX = 12  # of a bar; what is less becomes one part
BARS_MAX = 64  # ranks; of more, those that waited least and most


@dataclass(frozen=True)
class Part:
    """A stage's part of the mean step. begin, share: of the whole bar, 0 to 1."""

    name: str
    ms: float
    begin: float
    share: float

    @property
    def colour(self) -> str:
        return WAIT_COLOUR if self.name == WAITING else stage_colour(self.name)


@dataclass(frozen=True)
class RankBar:
    """A rank's mean step in ms. work, waited: as shares of the longest step of all ranks."""

    rank: int
    host: str
    work_ms: float
    waited_ms: float
    work: float
    waited: float


def mean_step(run: RunData, waits: Mapping[str, Matrix] = MappingProxyType({})) -> list[Part]:
    """The parts of the mean step over all ranks, in the order of the step, with what no stage
    covers as the last one. waits: what ranks wait for one another in a stage, rank ×
    step, which is one part for all stages."""
    known = np.isfinite(run.step_ns)
    count = max(int(known.sum()), 1)
    whole = float(run.step_ns[known].sum()) / count
    if whole <= 0:
        return []
    means = np.where(known[:, :, None], run.totals, 0.0).sum((0, 1)) / count
    timed, waited = float(means.sum()), 0.0
    for stage, of_stage in waits.items():
        mean = float(of_stage[known].sum()) / count
        means[run.stages.index(stage)] -= mean
        waited += mean
    parts = _largest([
        (run.stages[place], float(means[place])) for place in _in_order(run)
        if means[place] > 0
    ])  # fmt: skip
    parts += [(WAITING, waited)] if waited > 0 else []
    parts.append((UNTIMED, max(whole - timed, 0.0)))
    begins = np.cumsum([0.0] + [ns for _, ns in parts])
    scale = max(whole, float(begins[-1]))
    return [
        Part(name, ns * 1e-6, float(begin) / scale, ns / scale)
        for (name, ns), begin in zip(parts, begins[:-1], strict=True)
    ]


def _in_order(run: RunData) -> list[int]:
    """The stages by when they begin in the middle step."""
    since = run.begins - run.step_begins[..., None]
    order: list[int] = np.argsort(median(since.reshape(-1, len(run.stages)), 0)).tolist()
    return order


def _largest(parts: list[tuple[str, float]]) -> list[tuple[str, float]]:
    if len(parts) <= STAGES_MAX:
        return parts
    least = sorted((ns for _, ns in parts), reverse=True)[STAGES_MAX - 2]
    kept = [(name, ns) for name, ns in parts if ns >= least][: STAGES_MAX - 1]
    return [*kept, (OTHERS, sum(ns for _, ns in parts) - sum(ns for _, ns in kept))]


def rank_bars(run: RunData, waited: Matrix) -> list[RankBar]:
    """Of each rank the mean step, and how much of it the rank waited: rank × step, ns.

    The rank that waited least comes first; of more than BARS_MAX ranks, those that waited least and
    most.
    """
    with np.errstate(invalid="ignore"):
        steps = row_means(run.step_ns)
        waits = np.minimum(row_means(waited), steps)
    longest = float(np.nanmax(steps, initial=0.0)) or 1.0
    return [
        RankBar(
            rank=int(run.ranks[row]),
            host=run.hosts[row] if len(run.hosts) else "",
            work_ms=float(steps[row] - waits[row]) * 1e-6,
            waited_ms=float(waits[row]) * 1e-6,
            work=float(steps[row] - waits[row]) / longest,
            waited=float(waits[row]) / longest,
        )
        for row in least_and_most(waits)
        if np.isfinite(steps[row])
    ]


def row_means(matrix: Matrix) -> Matrix:
    """Of each row the mean of what is known; NaN where nothing is."""
    known = np.isfinite(matrix)
    sums: Matrix = np.where(known, matrix, 0.0).sum(1)
    means: Matrix = np.divide(sums, known.sum(1), out=np.full(len(sums), np.nan),
                              where=known.any(1))  # fmt: skip
    return means


def least_and_most(values: Matrix | Integers) -> list[int]:
    """The places of the values, rising; of more than BARS_MAX, those of the least and the most."""
    order = np.argsort(values, kind="stable")
    if len(order) > BARS_MAX:
        order = np.concatenate([order[: BARS_MAX // 2], order[-BARS_MAX // 2 :]])
    chosen: list[int] = order.tolist()
    return chosen
