"""Finds memory that keeps growing.

The series of a rank is cut into ten equal parts. Memory grows if the medians of the parts rise
nearly always, by as much in the last three as before, so that what fills up at the beginning and
then stays is none. The slope is the median of those between any two parts. It is a finding from 8 %
of the memory at the beginning on, within the judged steps, and "suspicious" below.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from .run_data import Matrix

PARTS = 10
RISES_MIN = 8  # of the nine differences
LAST_PARTS = 3
LAST_SHARE = 0.5  # of the mean slope, that the slope of the last parts must have
LEAST_GROWTH = 0.08  # of the memory at the beginning
LEAST_SUSPICIOUS = 0.005
NAMES = {"allocated_bytes": "device memory", "rss_bytes": "memory"}

Integers = npt.NDArray[np.int64]


@dataclass
class Growth:
    """bytes_a_step: of the rank that grows fastest. growth: over the judged steps, as a share of
    the beginning. rows: the ranks that grow."""

    name: str
    bytes_a_step: float
    growth: float
    rows: Integers

    @property
    def is_found(self) -> bool:
        return self.growth >= LEAST_GROWTH


def growth_of(counters: Mapping[str, Matrix], columns: Integers) -> Growth | None:
    """Of the memory that grows most; None if none does."""
    found: list[Growth] = []
    for counter, name in NAMES.items():
        if counter not in counters:
            continue
        slopes = [_slope(series[columns]) for series in counters[counter]]
        growing = [row for row, (_, growth) in enumerate(slopes) if growth >= LEAST_SUSPICIOUS]
        if growing:
            steepest = max(slopes[row] for row in growing)
            found.append(
                Growth(
                    name, steepest[0], max(slopes[row][1] for row in growing),
                    np.array(growing, np.int64),
                )
            )  # fmt: skip
    return max(found, key=lambda one: one.growth, default=None)


def _slope(series: npt.NDArray[np.float64]) -> tuple[float, float]:
    """Bytes a step, and the growth as a share; zeros where it does not grow."""
    known = series[np.isfinite(series)]
    if len(known) < 2 * PARTS:
        return 0.0, 0.0
    levels = np.array([float(np.median(part)) for part in np.array_split(known, PARTS)])
    rises = np.diff(levels)
    if (rises > 0).sum() < RISES_MIN or levels[0] <= 0:
        return 0.0, 0.0
    if rises[-LAST_PARTS:].mean() < LAST_SHARE * rises.mean():
        return 0.0, 0.0
    first, second = np.triu_indices(PARTS, 1)
    a_part = float(np.median((levels[second] - levels[first]) / (second - first)))
    a_step = a_part / (len(known) / PARTS)
    return a_step, a_step * len(known) / float(levels[0])
