"""The picture of the performance tracker: a panel a kind of figure over a common time axis.

A line is the mean of each bucket, the band round it reaches from the least to the greatest sample.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from ....core.units import bytes_text
from .series import Floats, Series
from .sources import Figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Picture


GIB = 1 << 30
_COLOURS = ("#4e79a7", "#f28e2b", "#59a14f", "#e15759", "#b07aa1", "#76b7b2", "#edc948", "#9c755f")
_STYLES = ("-", "--", ":")


class _Panel(NamedTuple):
    title: str
    scale: float
    keys: tuple[str, ...]
    on_gpu: bool


_PANELS = (
    _Panel(
        "GPU memory, GiB", GIB, ("allocated_bytes", "reserved_bytes", "memory_used_bytes"), True
    ),
    _Panel("GPU use, %", 1, ("utilization_percent", "memory_utilization_percent"), True),
    _Panel("power, W", 1, ("power_w",), True),
    _Panel("temperature, °C", 1, ("temperature_c",), True),
    _Panel("clocks, MHz", 1, ("sm_clock_mhz", "memory_clock_mhz"), True),
    _Panel("PCIe, MB/s", 1e6, ("pcie_rx_bytes_per_s", "pcie_tx_bytes_per_s"), True),
    _Panel("RSS, GiB", GIB, ("rss_bytes",), False),
    _Panel("host memory, GiB", GIB, ("available_bytes",), False),
    _Panel("CPU, %", 1, ("cpu_percent",), False),
    _Panel("disk, MB/s", 1e6, ("read_bytes_per_s", "write_bytes_per_s"), False),
)


def draw(
    picture: Picture,
    figures: Sequence[Figure],
    series: Series,
    peaks: Mapping[str, Any],
    title: str,
) -> None:
    """Draws the panels that have samples. `peaks` are `Peak`s by the name of their figure."""
    shown = [
        (panel, chosen) for panel in _PANELS if (chosen := _choose_figures(panel, figures, series))
    ]
    rows = max(len(shown), 1)
    picture.set_size_inches(11, 1.2 + 1.6 * rows)
    axes: Any = picture.subplots(rows, sharex=True, squeeze=False)[:, 0]
    begin = series.begins[0] if len(series) else 0.0
    scale, unit = _time_unit((series.ends[-1] - begin) if len(series) else 0.0)
    times = ((series.begins + series.ends) / 2 - begin) / scale
    for axis, (panel, chosen) in zip(axes, shown, strict=False):
        _draw_panel(axis, panel, chosen, series, times)
        for figure in chosen:
            if figure.key in ("allocated_bytes", "rss_bytes"):
                _mark(axis, peaks[figure.name], panel.scale, begin, scale)
    axes[0].set_title(title, loc="left", fontsize=11)
    axes[-1].set_xlabel(unit)


def _choose_figures(panel: _Panel, figures: Sequence[Figure], series: Series) -> list[Figure]:
    """Those with samples. Of torch's memory on several GPUs, those in use."""
    chosen = [
        figure
        for figure in figures
        if figure.key in panel.keys
        and figure.group.startswith("gpu") == panel.on_gpu
        and series.curve(figure.name).counts.any()
    ]
    used = [figure for figure in chosen if series.curve(figure.name).high > 0]
    return used or chosen[: len(panel.keys)]


def _time_unit(seconds: float) -> tuple[float, str]:
    if seconds < 300:
        return 1.0, "seconds"
    return (60.0, "minutes") if seconds < 3 * 3600 else (3600.0, "hours")


def _draw_panel(
    axis: Axes, panel: _Panel, figures: Sequence[Figure], series: Series, times: Floats
) -> None:
    groups = list(dict.fromkeys(figure.group for figure in figures))
    for figure in figures:
        curve = series.curve(figure.name)
        known = curve.counts > 0
        colour = _COLOURS[groups.index(figure.group) % len(_COLOURS)]
        style = _STYLES[panel.keys.index(figure.key) % len(_STYLES)]
        along = times[known]
        lows, highs, sums, counts = (kept[known] for kept in curve)
        axis.plot(
            along, sums / counts / panel.scale, linestyle=style, color=colour,
            marker="." if len(along) < 40 else None, linewidth=1, label=_label(figure, groups),
        )  # fmt: skip
        axis.fill_between(
            along, lows / panel.scale, highs / panel.scale, color=colour, alpha=0.25, linewidth=0
        )
    axis.set_ylabel(panel.title, fontsize=8)
    axis.margins(y=0.3)
    axis.set_ylim(bottom=0)
    axis.legend(loc="upper left", fontsize=7, frameon=False, ncols=4)
    axis.spines[["top", "right"]].set_visible(False)


def _label(figure: Figure, groups: Sequence[str]) -> str:
    text = re.sub(r"(_bytes)?(_per_s)?$|_(percent|w|c|mhz)$", "", figure.key).replace("_", " ")
    return f"{figure.group} {text}" if len(groups) > 1 or figure.group.startswith("gpu") else text


def _mark(axis: Axes, peak: Any, scale: float, begin: float, unit_s: float) -> None:
    at, height = (peak.timestamp - begin) / unit_s, peak.value / scale
    where = f" in {peak.stage}" if peak.stage else ""
    axis.plot([at], [height], marker="v", color="black", markersize=4)
    axis.annotate(
        f"{readable(peak.value, peak.unit)}{where}", (at, height), xytext=(4, 4),
        textcoords="offset points", fontsize=7, annotation_clip=False,
    )  # fmt: skip


def readable(value: float, unit: str) -> str:
    """A value with its unit.

    >>> readable(3 * 2**30, "bytes"), readable(1500.0, "bytes/s"), readable(61.25, "%")
    ('3.00 GiB', '1.46 KiB/s', '61.25 %')
    """
    if not unit.startswith("bytes"):
        return f"{value:.2f} {unit}"
    return f"{bytes_text(value)}{unit.removeprefix('bytes')}"
