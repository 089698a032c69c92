"""The results of a sweep over shapes, as text, DataFrame, CSV and plot."""

from __future__ import annotations

import csv
import io
import math
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from ...core import tables as _tables
from ...core.extras import require
from ...core.lazy_modules import lazy_module
from ...core.notebook import html_table, one_screen
from ...core.public import public

if TYPE_CHECKING:
    import pandas
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
else:
    pandas = lazy_module("pandas")

Shape = int | tuple[Any, ...]  # of whole numbers, or of such tuples for several tensors
Status = Literal["ok", "oom", "error"]

COLUMNS = ("shape", "batch_size", "others", "status", "median_ms", "spread_ms", "min_ms", "p25_ms",
           "p75_ms", "max_ms", "per_second", "repeats", "clock", "peak_bytes", "error")  # fmt: skip
LOG_FROM = 20  # a range of times that is plotted on a logarithmic axis


def shape_text(shape: Shape | None) -> str:
    """
    >>> shape_text((8, 128)), shape_text(((2, 3), (3,))), shape_text(7), shape_text(())
    ('8x128', '2x3,3', '7', 'scalar')
    """
    if shape is None:
        return ""
    if isinstance(shape, int):
        return str(shape)
    if any(isinstance(part, tuple) for part in shape):
        return ",".join(shape_text(part) for part in shape)
    return "x".join(map(str, shape)) or "scalar"


@public("my_utils.annotations")
@dataclass(slots=True)
class SweepPoint:
    """One combination and its result.

    `status`: "ok", "oom" (out of memory) or "error"; except for "ok" the times are NaN and `error`
    is the exception's text. Times are milliseconds a call, of `repeats` calls; `spread_ms` is the
    distance between the quartiles. `clock` is "cpu" (wall clock) or "cuda" (events
    on the current stream). `peak_bytes` is the most memory that torch's CUDA allocator had given
    out during the timed calls; None on the CPU. `others` are further arguments, as text.
    """

    shape: Shape | None
    batch_size: int | None
    others: str = ""
    status: Status = "ok"
    median_ms: float = math.nan
    min_ms: float = math.nan
    p25_ms: float = math.nan
    p75_ms: float = math.nan
    max_ms: float = math.nan
    repeats: int = 0
    clock: str = "cpu"
    peak_bytes: int | None = None
    error: str = ""

    @property
    def spread_ms(self) -> float:
        return self.p75_ms - self.p25_ms

    @property
    def per_second(self) -> float:
        """Samples a second: the batch size, or 1 without one, by the median."""
        return 1e3 * (self.batch_size or 1) / self.median_ms if self.median_ms else math.nan

    def row(self) -> dict[str, Any]:
        """The values by the names of the columns; the shape as text."""
        row = {name: getattr(self, name) for name in COLUMNS}
        row["shape"] = shape_text(self.shape)
        return row


@public("my_utils.annotations")
@dataclass(slots=True)
class SweepResult:
    """The points of a sweep in the order of measurement. `str(result)` is a table."""

    name: str
    points: list[SweepPoint] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.points)

    def to_dataframe(self) -> pandas.DataFrame:
        """A pandas DataFrame with a row a point. Raises ImportError if pandas is missing."""
        pandas = require("pandas", "a DataFrame of a sweep")
        return pandas.DataFrame([point.row() for point in self.points], columns=list(COLUMNS))

    def to_text(self) -> str:
        """A table for people; empty columns are left out."""
        headings, lines = self._table()
        return _tables.text_table(headings, lines, left=1)

    def __str__(self) -> str:
        return self.to_text()

    def __repr__(self) -> str:
        """The table; of a long one the first lines."""
        title = f"SweepResult: {self.name}, {len(self.points)} points"
        return one_screen([title, *self.to_text().splitlines()])

    def _repr_html_(self) -> str:
        """For notebooks."""
        return html_table(*self._table())

    def _table(self) -> tuple[list[str], list[list[str]]]:
        columns = [(heading, list(map(cell, self.points))) for heading, cell in _SHOWN]
        shown = [(heading, cells) for heading, cells in columns if any(cells)]
        rows = zip(*(cells for _, cells in shown), strict=True)
        return [heading for heading, _ in shown], list(map(list, rows))

    def to_csv(self, path: str | os.PathLike[str]) -> None:
        """Writes a row a point; the file is complete or not there. Missing values are empty."""
        text = io.StringIO()
        writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
        writer.writeheader()
        for point in self.points:
            row = point.row().items()
            writer.writerow(
                {name: "" if value != value else _tables.cell_text(value) for name, value in row}
            )
        _tables.write_text(path, text.getvalue())

    def plot(self, path: str | os.PathLike[str]) -> None:
        """Writes a PNG: median and quartiles by batch size, a line for each shape.

        Without batch sizes the shapes are along the axis. Points that ran out of memory or
        failed are crosses at the upper edge. Raises ImportError if matplotlib is missing.
        """
        _tables.write_figure(path, self._draw)

    def _draw(self, figure: Figure) -> None:
        figure.set_size_inches(8, 5)
        axes = figure.subplots()
        by_batch = any(point.batch_size is not None for point in self.points)
        lines: dict[str, list[SweepPoint]] = {}
        for point in self.points:
            shape = shape_text(point.shape) if by_batch else ""
            lines.setdefault(" ".join(filter(None, (shape, point.others))), []).append(point)
        places = _places(self.points, by_batch)
        for label, points in lines.items():
            _draw_line(axes, label, points, places)
        axes.set_xticks(range(len(places)), list(places), fontsize=8)
        axes.set_xlabel("batch size" if by_batch else "shape")
        axes.set_ylabel("ms a call: median and quartiles")
        times = [point.median_ms for point in self.points if point.status == "ok"]
        if times and min(times) > 0 and max(times) / min(times) > LOG_FROM:
            axes.set_yscale("log")
        axes.set_title(f"{self.name}, {_clock_text(self.points)}", loc="left", fontsize=10)
        axes.grid(alpha=0.3)
        if any(lines):
            axes.legend(fontsize=8)


_STATUS_TEXTS = {"ok": "", "oom": "out of memory", "error": "failed"}


def _figure(point: SweepPoint, value: float, form: str = ".4f", failed: str = "-") -> str:
    return format(value, form) if point.status == "ok" else failed


# The columns of the text, each with what makes a cell.
_SHOWN: tuple[tuple[str, Callable[[SweepPoint], str]], ...] = (
    ("shape", lambda point: shape_text(point.shape)),
    ("batch", lambda point: "" if point.batch_size is None else str(point.batch_size)),
    ("others", lambda point: point.others),
    ("median ms",
     lambda point: _figure(point, point.median_ms, failed=_STATUS_TEXTS[point.status])),
    ("spread ms", lambda point: _figure(point, point.spread_ms)),
    ("min ms", lambda point: _figure(point, point.min_ms)),
    ("max ms", lambda point: _figure(point, point.max_ms)),
    ("samples/s", lambda point: _figure(point, point.per_second, ".1f")),
    ("clock", lambda point: point.clock),
    ("peak MiB",
     lambda point: "" if point.peak_bytes is None else f"{point.peak_bytes / 2**20:.1f}"),
)  # fmt: skip


def _place(point: SweepPoint, by_batch: bool) -> str:
    return str(point.batch_size) if by_batch else shape_text(point.shape)


def _places(points: list[SweepPoint], by_batch: bool) -> dict[str, int]:
    """Where each label is on the axis: batch sizes by their size, shapes as they came."""
    ordered = sorted(points, key=lambda point: point.batch_size or 0) if by_batch else points
    labels = dict.fromkeys(_place(point, by_batch) for point in ordered)
    return {label: at for at, label in enumerate(labels)}


def _draw_line(axes: Axes, label: str, points: list[SweepPoint], places: dict[str, int]) -> None:
    by_batch = points[0].batch_size is not None
    at = [places[_place(point, by_batch)] for point in points]
    fine = sorted(
        (place, point.median_ms, point.median_ms - point.p25_ms, point.p75_ms - point.median_ms)
        for place, point in zip(at, points, strict=True)
        if point.status == "ok"
    )
    across, medians, below, above = zip(*fine, strict=True) if fine else ((), (), (), ())
    drawn = axes.errorbar(
        across, medians, yerr=(below, above), marker="o", capsize=3, label=label or None
    )
    for place, point in zip(at, points, strict=True):
        if point.status != "ok":
            axes.plot(place, 0.97, "x", transform=axes.get_xaxis_transform(), markersize=9,
                      markeredgewidth=2, color=drawn[0].get_color())  # fmt: skip
            axes.annotate(
                _STATUS_TEXTS[point.status], (place, 0.97), xycoords=axes.get_xaxis_transform(),
                xytext=(6, 0), textcoords="offset points", fontsize=7, va="center",
            )  # fmt: skip


def _clock_text(points: list[SweepPoint]) -> str:
    clocks = {point.clock for point in points}
    if clocks == {"cuda"}:
        return "GPU time"
    return "wall clock, not GPU time" if clocks == {"cpu"} else "GPU time and wall clock"
