"""How the steps of two sides are distributed, in the same bins."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

import numpy as np

from ..verdict.run_data import Matrix
from .load import MEMORY, RunSteps
from .result import Difference

Side = Sequence[RunSteps]
Unit = Literal["ms", "bytes", "per second"]
Values = Callable[[RunSteps], Matrix]

BINS = 50
LONGEST = 0.995  # quantile at which the last bin begins: one step of 41 s would flatten the others
QUANTILES = (0.1, 0.5, 0.9, 0.99)
STAGES_SHOWN = 6
LEAST_SHARE = 0.001  # of a step, on one side; a stage below it is not shown


@dataclass(frozen=True)
class Distribution:
    """name: "the step", a stage, "memory" or "samples/s". low, high: where the first bin begins and
    the last one does. a, b: the values of each side, those of all its runs. bins_a, bins_b: shares
    of the side's values in bins of equal width; the last has all larger ones."""

    name: str
    unit: Unit
    low: float
    high: float
    a: Matrix
    b: Matrix
    bins_a: Matrix
    bins_b: Matrix

    @property
    def sides(self) -> list[tuple[str, Matrix, Matrix]]:
        """Name, values and bins of A and of B."""
        return [("A", self.a, self.bins_a), ("B", self.b, self.bins_b)]


def make_distributions(found: Difference, a: Side, b: Side) -> list[Distribution]:
    """Of the step, of the stages that differ most, of memory and of throughput, as far as both
    sides have them.

    a, b: the runs as `compare` leaves them: with the same stages, and the steps that are compared.
    """
    return [
        _distribution(name, unit, one[np.isfinite(one)], two[np.isfinite(two)])
        for name, unit, values_of in _shown(found, a, b)
        for one, two in [(_joined(a, values_of), _joined(b, values_of))]
        if np.isfinite(one).any() and np.isfinite(two).any()
    ]


def _shown(found: Difference, a: Side, b: Side) -> Iterator[tuple[str, Unit, Values]]:
    """What is shown: its name, its unit, and how a run's values of it are taken."""
    yield "the step", "ms", lambda run: 1e-6 * run.step_ns
    large = [
        one for one in found.stages
        if one.a_ns > LEAST_SHARE * found.a_ns or one.b_ns > LEAST_SHARE * found.b_ns
    ]  # fmt: skip
    for stage in large[:STAGES_SHOWN]:
        yield stage.stage, "ms", partial(_stage_ms, stage.stage)
    kept = slice(found.warmup, found.warmup + found.steps)
    both = [name for name in MEMORY if all(name in run.memory for run in (*a, *b))]
    if both:
        yield "memory", "bytes", lambda run: run.memory[both[0]][kept]
    for name in ("samples", "tokens"):
        if all(name in run.items for run in (*a, *b)):
            yield f"{name}/s", "per second", partial(_items_a_second, name, kept)


def _joined(side: Side, values_of: Values) -> Matrix:
    joined: Matrix = np.concatenate([values_of(run) for run in side])
    return joined


def _stage_ms(name: str, run: RunSteps) -> Matrix:
    mean: Matrix = 1e-6 * run.parts[..., run.stages.index(name)].mean(0)
    return mean


def _items_a_second(name: str, kept: slice, run: RunSteps) -> Matrix:
    rate: Matrix = 1e9 * run.items[name][kept] / run.step_ns
    return rate


def _distribution(name: str, unit: Unit, a: Matrix, b: Matrix) -> Distribution:
    low = float(min(a.min(), b.min()))
    high = float(max(np.quantile(a, LONGEST), np.quantile(b, LONGEST)))
    bins = [_shares(one, low, high) for one in (a, b)]
    return Distribution(name, unit, low, high, a, b, bins[0], bins[1])


def _shares(values: Matrix, low: float, high: float) -> Matrix:
    """The last bin begins at `high`."""
    width = (high - low) / (BINS - 1) or 1.0
    places = np.minimum(((values - low) / width).astype(np.int64), BINS - 1)
    shares: Matrix = np.bincount(places, minlength=BINS) / len(values)
    return shares
