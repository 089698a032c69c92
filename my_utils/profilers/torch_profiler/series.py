"""Figures of profiled blocks, one after another: thousands of them in bounded memory.

>>> series = Series(most=4)
>>> for number in range(9):
...     series.add(Point(number, device=Spread.of(number * 1_000_000)))
>>> [(point.first, point.entries, point.device.mean) for point in series.points]
[(0, 4, 1500000.0), (4, 4, 5500000.0), (8, 1, 8000000.0)]
>>> series.total.device.mean, series.total.entries
(4000000.0, 9)
"""

from __future__ import annotations

from dataclasses import dataclass, field

POINTS_MAX = 4096  # of a series; 1 MiB


@dataclass(slots=True)
class Spread:
    """Count, sum and extremes of whole numbers."""

    count: int = 0
    total: int = 0
    min: int = 0
    max: int = 0

    @classmethod
    def of(cls, value: int) -> Spread:
        return cls(1, value, value, value)

    @property
    def mean(self) -> float:
        return self.total / self.count if self.count else 0.0

    def merge(self, other: Spread) -> None:
        if not other.count:
            return
        self.min = min(self.min, other.min) if self.count else other.min
        self.max = max(self.max, other.max) if self.count else other.max
        self.count += other.count
        self.total += other.total


@dataclass(slots=True)
class Point:
    """One entry of a series, or several neighbours once there are many.

    first: the number of the first of them, from 0. unprofiled: how many had no profiler. raised:
    how many ended with an exception. wall, device and cpu are ns, peaks are bytes by device.
    """

    first: int = 0
    entries: int = 1
    unprofiled: int = 0
    raised: int = 0
    wall: Spread = field(default_factory=Spread)
    device: Spread = field(default_factory=Spread)
    cpu: Spread = field(default_factory=Spread)
    peaks: dict[str, Spread] = field(default_factory=dict)

    def merge(self, other: Point) -> None:
        """Takes in the point that follows."""
        self.entries += other.entries
        self.unprofiled += other.unprofiled
        self.raised += other.raised
        self.wall.merge(other.wall)
        self.device.merge(other.device)
        self.cpu.merge(other.cpu)
        for device, peak in other.peaks.items():
            self.peaks.setdefault(device, Spread()).merge(peak)


class Series:
    """Points in order, at most `most` of them: full, each two become one, and so do new ones."""

    def __init__(self, most: int = POINTS_MAX) -> None:
        self.points: list[Point] = []
        self.total = Point(entries=0)
        self._most = most
        self._width = 1  # entries a point

    def add(self, point: Point) -> None:
        self.total.merge(point)
        if self.points and self.points[-1].entries < self._width:
            self.points[-1].merge(point)
            return
        self.points.append(point)
        if len(self.points) > self._most:
            self._halve()

    def _halve(self) -> None:
        self._width *= 2
        pairs = self.points[::2]
        for left, right in zip(pairs, self.points[1::2], strict=False):
            left.merge(right)
        self.points = pairs
