"""Samples of a run of any length in bounded memory: buckets that keep minimum and maximum.

Each bucket stands for the same number of samples. When all buckets are used, neighbours are merged
two by two, and the next buckets stand for twice as many samples. So the least and the greatest
sample are always kept, and means stay exact.

>>> series = Series(["rss"], capacity=4)
>>> for second in range(100):
...     series.add(float(second), [float(second % 10)])
>>> len(series) <= 4, series.low("rss"), series.high("rss")
(True, 0.0, 9.0)
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence


class Curve:
    """A column, a value a bucket; NaN where no sample had one."""

    __slots__ = ("counts", "highs", "lows", "sums")

    def __init__(self) -> None:
        self.lows = array("d")
        self.highs = array("d")
        self.sums = array("d")
        self.counts = array("q")  # of samples with a value

    @property
    def means(self) -> list[float]:
        return [
            total / count if count else math.nan
            for total, count in zip(self.sums, self.counts, strict=True)
        ]

    def open_bucket(self) -> None:
        self.lows.append(math.nan)
        self.highs.append(math.nan)
        self.sums.append(0.0)
        self.counts.append(0)

    def add(self, value: float) -> None:
        """Adds to the last bucket; NaN is ignored."""
        if value != value:
            return
        if self.counts[-1] == 0:
            self.lows[-1] = self.highs[-1] = value
        elif value < self.lows[-1]:
            self.lows[-1] = value
        elif value > self.highs[-1]:
            self.highs[-1] = value
        self.sums[-1] += value
        self.counts[-1] += 1

    def halve(self) -> None:
        """Merges the buckets two by two; their number is even."""
        self.lows = array("d", map(_least, self.lows[0::2], self.lows[1::2]))
        self.highs = array("d", map(_most, self.highs[0::2], self.highs[1::2]))
        self.sums = array("d", map(float.__add__, self.sums[0::2], self.sums[1::2]))
        self.counts = array("q", map(int.__add__, self.counts[0::2], self.counts[1::2]))


def _least(a: float, b: float) -> float:
    return a if a <= b or b != b else b


def _most(a: float, b: float) -> float:
    return a if a >= b or b != b else b


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
        self.begins = array("d")
        self.ends = array("d")
        self.curves = {name: Curve() for name in columns}
        self._in_last = 0

    def __len__(self) -> int:
        return len(self.begins)

    def add(self, time_s: float, values: Sequence[float]) -> None:
        """Adds a sample, with a value or NaN for each column."""
        if self._in_last == 0:
            self._open_bucket(time_s)
        for curve, value in zip(self.curves.values(), values, strict=True):
            curve.add(value)
        self.ends[-1] = time_s
        self._in_last = (self._in_last + 1) % self.stride

    def _open_bucket(self, time_s: float) -> None:
        if len(self.begins) == self.capacity:
            self.begins = self.begins[0::2]
            self.ends = self.ends[1::2]
            for curve in self.curves.values():
                curve.halve()
            self.stride *= 2
        self.begins.append(time_s)
        self.ends.append(time_s)
        for curve in self.curves.values():
            curve.open_bucket()

    @property
    def times(self) -> list[float]:
        """The middle of each bucket, in seconds."""
        return [(begin + end) / 2 for begin, end in zip(self.begins, self.ends, strict=True)]

    def low(self, column: str) -> float:
        """The least value that was ever added, NaN for none."""
        return min(_values(self.curves[column].lows), default=math.nan)

    def high(self, column: str) -> float:
        """The greatest value that was ever added, NaN for none."""
        return max(_values(self.curves[column].highs), default=math.nan)

    def mean(self, column: str) -> float:
        """Of all values that were added, NaN for none."""
        curve = self.curves[column]
        count = sum(curve.counts)
        return math.fsum(curve.sums) / count if count else math.nan


def _values(values: array) -> list[float]:  # type: ignore[type-arg]
    return [value for value in values if value == value]
