"""Finds memory that keeps growing.

The series of a rank is cut into ten equal parts. Memory grows if the medians of the parts rise
nearly always, by as much in the last three as before, so that what fills up at the beginning and
then stays does not count. The slope is the median of those between any two parts. It is a finding
from 8 % of the memory at the beginning on, within the judged steps, and "suspicious" below.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from .run_data import Integers, Matrix

PARTS = 10
RISES_MIN = 8  # of the nine differences
LAST_PARTS = 3
LAST_SHARE = 0.5  # of the mean slope, that the slope of the last parts must have
LEAST_GROWTH = 0.08  # of the memory at the beginning
LEAST_SUSPICIOUS = 0.005
MEMORY_NAMES = {"allocated_bytes": "device memory", "rss_bytes": "memory"}


@dataclass
class Growth:
    """bytes_a_step: of the rank that grows fastest. growth: over the judged steps, as a share of
    the beginning. rows: the ranks that grow."""

    name: str
    bytes_a_step: float
    growth: float
    rows: Integers


def find_growth(counters: Mapping[str, Matrix], columns: Integers) -> Growth | None:
    """Of the memory that grows most; None if none does."""
    found: list[Growth] = []
    for counter, name in MEMORY_NAMES.items():
        if counter not in counters:
            continue
        slopes, growths = _slopes(counters[counter][:, columns], columns).T
        growing = np.flatnonzero(growths >= LEAST_SUSPICIOUS)
        if len(growing):
            steepest, growth = float(slopes[growing].max()), float(growths[growing].max())
            found.append(Growth(name, steepest, growth, growing))
    return max(found, key=lambda one: one.growth, default=None)


def _slopes(series: Matrix, steps: Integers) -> Matrix:
    """Of each rank the bytes a step and the growth as a share; zeros where it does not grow. Memory
    is measured in some steps only."""
    known = np.isfinite(series)
    whole = known.all(1)
    slopes = np.zeros((len(series), 2))
    slopes[whole] = _fit_slopes(series[whole], steps)
    for row in np.flatnonzero(~whole):
        slopes[row] = _fit_slopes(series[row, known[row]][None, :], steps[known[row]])[0]
    return slopes


def _fit_slopes(series: Matrix, steps: Integers) -> Matrix:
    """The same of ranks that were measured in all of these steps."""
    slopes = np.zeros((len(series), 2))
    if len(steps) < 2 * PARTS or not len(series):
        return slopes
    parts = np.array_split(series, PARTS, axis=1)
    levels = np.stack([np.median(part, axis=1) for part in parts], axis=1)
    rises = np.diff(levels, axis=1)
    grows = ((rises > 0).sum(1) >= RISES_MIN) & (levels[:, 0] > 0)
    grows &= rises[:, -LAST_PARTS:].mean(1) >= LAST_SHARE * rises.mean(1)
    places = np.array([np.median(part) for part in np.array_split(steps, PARTS)])
    first, second = np.triu_indices(PARTS, 1)
    levels = levels[grows]
    apart = (levels[:, second] - levels[:, first]) / (places[second] - places[first])
    a_step = np.median(apart, axis=1)
    span = int(steps[-1] - steps[0]) + 1
    slopes[grows] = np.stack([a_step, a_step * span / levels[:, 0]], axis=1)
    return slopes
