"""Splits what each stage takes in a step into its usual time and what is above it.

Pauses, checkpoints and collections of garbage are long and rare. In a mean they hide what every
step takes longer; where they are left out, they are missing from what the run took. So both are
compared, each with its own error, and together they are the mean of all steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..verdict.hiccups import LEAST_OF_STEP, LOWER_HALF, SCATTERS
from ..verdict.run_data import Matrix
from .load import RunSteps


@dataclass
class Split:
    """A run's stages, the means of the ranks: steps × stages, ns. Their sum is what they took."""

    usual: Matrix
    above: Matrix


def split(sides: Sequence[Sequence[RunSteps]]) -> list[list[Split]]:
    """Of each run of each side. All runs have the same stages.

    A stage is above its usual in a step beyond the median of its side and 5 times the spread, and 3
    % of a step at least; then the median is its usual. The spread is that of the side that varies
    more, so that two sides of the same code are cut alike.
    """
    took = [[run.parts.mean(0) for run in side] for side in sides]
    together = [np.concatenate(side) for side in took]
    width = np.max([_width(side) for side in together], axis=0)
    medians = [np.median(side, axis=0) for side in together]
    return [
        [_split(figures, median, width) for figures in side]
        for side, median in zip(took, medians, strict=True)
    ]


def _width(figures: Matrix) -> Matrix:
    """By the lower half of the steps, which pauses do not reach."""
    low, high = np.quantile(figures, (0.1, 0.4), axis=0)
    least = LEAST_OF_STEP * float(np.median(figures.sum(1)))
    width: Matrix = np.maximum(SCATTERS * (high - low) / LOWER_HALF, least)
    return width


def _split(figures: Matrix, median: Matrix, width: Matrix) -> Split:
    usual = np.where(figures > median + width, median, figures)
    return Split(usual, figures - usual)
