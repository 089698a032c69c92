"""Figures of many durations: count, sum, spread and percentiles, in bounded memory.

Durations are integers of nanoseconds. The percentile `q` is the smallest duration that at least
the share `q` of all durations do not exceed, which is what the C aggregates give as well.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable
from typing import TypedDict

EXACT_MAX = 131_072  # durations that are kept one by one; 1 MiB
_SUB_BITS = 6  # histogram buckets an octave, as a power of two: 1/64 wide


class Figures(TypedDict):
    """Figures of one stage in milliseconds; the spread is that of the population."""

    count: int
    total_ms: float
    mean_ms: float
    std_ms: float
    min_ms: float
    p50_ms: float
    p90_ms: float
    p99_ms: float
    max_ms: float


FIGURE_NAMES = tuple(Figures.__annotations__)


class Durations:
    """Collects durations in ns. Exact up to EXACT_MAX of them; above, percentiles are within 1 %.

    Not thread-safe.
    """

    __slots__ = ("_buckets", "_values", "count", "max", "min", "squares", "total")

    def __init__(self, values: Iterable[int] = ()) -> None:
        self.count = 0
        self.total = 0
        self.squares = 0
        self.min = 0
        self.max = 0
        self._values = array("q")
        self._buckets: dict[int, int] | None = None
        for value in values:
            self.add(value)

    @property
    def exact(self) -> bool:
        """False when the percentiles come from a histogram."""
        return self._buckets is None

    def add(self, ns: int) -> None:
        if self.count == 0:
            self.min = self.max = ns
        elif ns < self.min:
            self.min = ns
        elif ns > self.max:
            self.max = ns
        self.count += 1
        self.total += ns
        self.squares += ns * ns
        if self._buckets is None:
            self._values.append(ns)
            if len(self._values) > EXACT_MAX:
                self._to_histogram()
        else:
            bucket = _bucket(ns)
            self._buckets[bucket] = self._buckets.get(bucket, 0) + 1

    def merge(self, other: Durations) -> None:
        """Adds the durations of `other`."""
        if other._buckets is None:
            for ns in other._values:
                self.add(ns)
            return
        if self._buckets is None:
            self._to_histogram()
        assert self._buckets is not None
        for bucket, count in other._buckets.items():
            self._buckets[bucket] = self._buckets.get(bucket, 0) + count
        self.min = min(self.min, other.min) if self.count else other.min
        self.max = max(self.max, other.max) if self.count else other.max
        self.count += other.count
        self.total += other.total
        self.squares += other.squares

    def _to_histogram(self) -> None:
        buckets: dict[int, int] = {}
        for ns in self._values:
            bucket = _bucket(ns)
            buckets[bucket] = buckets.get(bucket, 0) + 1
        self._buckets = buckets
        self._values = array("q")

    def quantile(self, q: float) -> int:
        """The smallest duration that the share `q` of all do not exceed; 0 when there are none."""
        return self._quantiles((q,))[0]

    def _quantiles(self, wanted: tuple[float, ...]) -> list[int]:
        if self.count == 0:
            return [0 for _ in wanted]
        ranks = [max(math.ceil(q * self.count), 1) for q in wanted]
        if self._buckets is None:
            values = sorted(self._values)
            return [values[rank - 1] for rank in ranks]
        return [self._from_histogram(self._buckets, rank) for rank in ranks]

    def _from_histogram(self, buckets: dict[int, int], rank: int) -> int:
        below = 0
        for bucket in sorted(buckets):
            below += buckets[bucket]
            if below >= rank:
                return min(max(_bucket_middle(bucket), self.min), self.max)
        return self.max

    def std(self) -> float:
        """Of the population, in ns. The sums are integers, so nothing cancels."""
        if self.count == 0:
            return 0.0
        return math.sqrt(self.count * self.squares - self.total * self.total) / self.count

    def figures(self) -> Figures:
        p50, p90, p99 = self._quantiles((0.5, 0.9, 0.99))
        return {
            "count": self.count,
            "total_ms": self.total / 1e6,
            "mean_ms": self.total / self.count / 1e6 if self.count else 0.0,
            "std_ms": self.std() / 1e6,
            "min_ms": self.min / 1e6,
            "p50_ms": p50 / 1e6,
            "p90_ms": p90 / 1e6,
            "p99_ms": p99 / 1e6,
            "max_ms": self.max / 1e6,
        }


def _bucket(ns: int) -> int:
    """Below 2^6 each duration has a bucket; above, the six bits after the first choose it."""
    shift = ns.bit_length() - 1 - _SUB_BITS
    if ns <= 0 or shift <= 0:
        return max(ns, 0)
    return (shift << _SUB_BITS) + (ns >> shift)


def _bucket_middle(bucket: int) -> int:
    if bucket < 2 << _SUB_BITS:
        return bucket
    shift = (bucket >> _SUB_BITS) - 1
    return (bucket - (shift << _SUB_BITS) << shift) + (1 << shift >> 1)
