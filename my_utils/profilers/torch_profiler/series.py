"""Figures of profiled blocks, one after another, and their plots: thousands of them in bounded
memory.

>>> series = Series(most=4)
>>> for number in range(9):
...     series.add(Point(number, device=Spread.of(number * 1_000_000)))
>>> [(point.first, point.entries, point.device.mean) for point in series.points]
[(0, 4, 1500000.0), (4, 4, 5500000.0), (8, 1, 8000000.0)]
>>> series.total.device.mean, series.total.entries
(4000000.0, 9)
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ...core import tables as _tables
from .entry_figures import MemoryCurve

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


POINTS_MAX = 4096  # of a series; 1 MiB
MIB = 1 << 20
MARKED_MAX = 200  # points that get a dot each


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


# --- plots ---


def time_title(name: str, series: Series) -> str:
    """What the plot of times says it shows."""
    total = series.total
    if total.device.total:
        kind, times = "GPU time", total.device
    else:
        kind, times = "CPU time in operators (no GPU time was seen)", total.cpu
    return f"{name}: {kind}, mean {times.mean / 1e6:.3f} ms an entry{_exceptions(series)}"


def memory_title(name: str, devices: list[str]) -> str:
    """What the plot of memory says it shows."""
    if devices == ["cpu"]:
        return f"{name}: CPU memory given out above the entry's start (no GPU memory was seen)"
    return f"{name}: memory given out by torch's allocator on the GPU"


def _exceptions(series: Series) -> str:
    total = series.total
    notes = [
        f"{count:,} {what}"
        for count, what in ((total.unprofiled, "not profiled"), (total.raised, "raised"))
        if count
    ]
    text = f"\n{total.entries:,} entries" if total.entries != 1 else "\n1 entry"
    return text + (f", of them {', '.join(notes)}" if notes else "")


def plot_times(path: str | os.PathLike[str], name: str, series: Series) -> None:
    """Time of each entry and their mean."""

    def draw(figure: Figure) -> None:
        figure.set_size_inches(9, 4.5)
        axes = figure.subplots()
        on_device = bool(series.total.device.total)
        total = series.total.device if on_device else series.total.cpu
        times = {p.first: p.device if on_device else p.cpu for p in series.points}
        _line(axes, times, 1e6, "GPU time" if on_device else "CPU time in operators")
        axes.axhline(total.mean / 1e6, color="tab:red", linestyle="--", linewidth=1, label="mean")
        axes.set_title(time_title(name, series), loc="left", fontsize=10)
        axes.set_ylabel("ms")
        axes.set_xlabel("entry")
        _finish(axes)

    _tables.write_figure(path, draw)


def plot_memory(
    path: str | os.PathLike[str], name: str, series: Series, last: dict[str, MemoryCurve]
) -> None:
    """Above the peak of each entry, below the course of the last one.

    Where any memory was a GPU's, that of the CPU is left out.
    """
    on_gpu = [device for device in series.total.peaks if device != "cpu"]
    devices = sorted(on_gpu) or ["cpu"]

    def draw(figure: Figure) -> None:
        figure.set_size_inches(9, 7)
        above, below = figure.subplots(2, 1)
        for device in devices:
            peaks = {p.first: p.peaks[device] for p in series.points if device in p.peaks}
            _line(above, peaks, MIB, f"peak, {device}")
            curve = last.get(device, MemoryCurve([0], [0]))
            below.step([at / 1e6 for at in curve.times_ns], [level / MIB for level in curve.levels],
                       where="post", linewidth=1, label=device)  # fmt: skip
        above.set_title(memory_title(name, devices) + _exceptions(series), loc="left", fontsize=10)
        above.set_xlabel("entry")
        below.set_title("the last profiled entry", loc="left", fontsize=9)
        below.set_xlabel("ms since it began")
        for axes in (above, below):
            axes.set_ylabel("MiB")
            _finish(axes)

    _tables.write_figure(path, draw)


def _line(axes: Axes, values: dict[int, Spread], unit: float, label: str) -> None:
    """A line of means; where a point holds several entries, their extremes as a band."""
    drawn = {at: spread for at, spread in values.items() if spread.count}
    across = list(drawn)
    marker = "o" if len(drawn) <= MARKED_MAX else None
    (line,) = axes.plot(across, [spread.mean / unit for spread in drawn.values()],
                        marker=marker, markersize=4, label=label)  # fmt: skip
    if any(spread.count > 1 for spread in drawn.values()):
        axes.fill_between(
            across,
            [spread.min / unit for spread in drawn.values()],
            [spread.max / unit for spread in drawn.values()],
            color=line.get_color(), alpha=0.2, linewidth=0,
        )  # fmt: skip


def _finish(axes: Axes) -> None:
    if axes.dataLim.y0 >= 0:  # memory may end below where the entry began
        axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
