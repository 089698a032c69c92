"""Samples of a run of any length in bounded memory: buckets that keep minimum and maximum.

Each bucket stands for the same number of samples. When all buckets are used, neighbours are merged
two by two, and the next buckets stand for twice as many samples. So the least and the greatest
sample are always kept, and means stay exact.

>>> series = Series(["rss"], capacity=4)
>>> for second in range(100):
...     series.add(float(second), [float(second % 10)])
>>> len(series) <= 4, series.curve("rss").low, series.curve("rss").high
(True, 0.0, 9.0)
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

# What a bucket keeps of its samples, how that of two buckets becomes one, and that of no sample.
_KEPT = (("lows", np.fmin, math.nan), ("highs", np.fmax, math.nan),
         ("sums", np.add, 0.0), ("counts", np.add, 0.0))  # fmt: skip


class Curve(NamedTuple):
    """A column, a value a bucket. Where no sample had a value, the extremes are NaN."""

    lows: Floats
    highs: Floats
    sums: Floats
    counts: Floats  # of samples with a value

    @property
    def low(self) -> float:
        """The least value that was ever added, NaN for none."""
        return float(np.fmin.reduce(self.lows, initial=math.nan))

    @property
    def high(self) -> float:
        """The greatest value that was ever added, NaN for none."""
        return float(np.fmax.reduce(self.highs, initial=math.nan))

    @property
    def mean(self) -> float:
        """Of all values that were added, NaN for none."""
        count = self.counts.sum()
        return float(self.sums.sum() / count) if count else math.nan


class Series:
    """Curves over a common time axis. Not thread-safe.

    capacity: buckets at most, even and at least 2. Memory is `capacity` × (2 + 4 × columns) × 8
        bytes.
    """

    def __init__(self, columns: Sequence[str], capacity: int = 4096) -> None:
        if capacity < 2 or capacity % 2:
            raise ValueError(f"capacity must be even and at least 2, not {capacity}")
        self.capacity = capacity
        self.stride = 1
        """Samples a bucket."""
        self._columns = {name: slot for slot, name in enumerate(columns)}
        self._times = np.empty((2, capacity))  # begins and ends, in seconds
        self._kept = np.empty((len(_KEPT), capacity, len(columns)))
        self._zeros = np.zeros(len(columns))
        self._length = 0
        self._in_last = 0

    def __len__(self) -> int:
        return self._length

    def add(self, time_s: float, values: Sequence[float]) -> None:
        """Adds a sample, with a value or NaN for each column."""
        if self._in_last == 0:
            self._open_bucket(time_s)
        last = self._length - 1
        row = np.array(values)
        known = row == row
        bucket = self._kept[:, last]
        _merge(bucket, (row, row, np.where(known, row, self._zeros), known), bucket)
        self._times[1, last] = time_s
        self._in_last = (self._in_last + 1) % self.stride

    def _open_bucket(self, time_s: float) -> None:
        if self._length == self.capacity:
            self._length //= 2
            self._times[:, : self._length] = self._times[0, 0::2], self._times[1, 1::2]
            _merge(self._kept[:, 0::2], self._kept[:, 1::2], self._kept[:, : self._length])
            self.stride *= 2
        self._times[0, self._length] = time_s
        for plane, (_, _, nothing) in zip(self._kept, _KEPT, strict=True):
            plane[self._length] = nothing
        self._length += 1

    @property
    def begins(self) -> Floats:
        """When each bucket begins, in seconds."""
        return self._times[0, : self._length]

    @property
    def ends(self) -> Floats:
        """When each bucket ends, in seconds."""
        return self._times[1, : self._length]

    def curve(self, column: str) -> Curve:
        """A view of a column."""
        return Curve(*self._kept[:, : self._length, self._columns[column]])


def _merge(left: Iterable[Floats], right: Iterable[Floats], out: Iterable[Floats]) -> None:
    for (_, merge, _), a, b, both in zip(_KEPT, left, right, out, strict=True):
        merge(a, b, both)
