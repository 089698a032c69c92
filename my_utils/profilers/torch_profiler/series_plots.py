"""The two plots of a series: time of each entry, and memory."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from ...core import tables as _tables
from .entry_figures import MemoryCurve
from .series import Series, Spread

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


MIB = 1 << 20
MARKED_MAX = 200  # points that get a dot each


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
