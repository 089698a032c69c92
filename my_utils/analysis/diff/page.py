"""A difference as one HTML file, in the style of the report."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ...core.ranges import as_ranges, ranges_text
from ...core.units import bytes_text, figure_text, time_text
from ..pages.html import rendered
from ..pages.tables import Cell, Column, Table, as_table, bytes_of, integer, time_of, times
from ..verdict.run_data import Matrix
from .distributions import QUANTILES, Distribution, make_distributions
from .gates import GateResult
from .intervals import Interval
from .load import RunSteps
from .result import Difference, FigureDifference, StageDifference
from .text import change_text, gate_line, markdown, share_text, terminal_lines

Side = Sequence[RunSteps]

STATE = {
    "slower": "found", "faster": "green", "no difference": "green", "not compared": "unjudged"
}  # fmt: skip
PARTS_SHOWN = 10
DIGITS = 2  # of a share in percent
HEIGHT = 60.0  # of a histogram, in the units of its drawing
WIDTH = 1000.0


@dataclass(frozen=True)
class _Part:
    """A bar of the sum. begin, width: of the drawing. kind: "more", "less" or "whole". sure: all of
    its interval is on one side of zero."""

    name: str
    text: str
    begin: float
    width: float
    kind: str
    sure: bool


@dataclass(frozen=True)
class _Histogram:
    """name: the side. path: of the bars. middle: where the median is, of the drawing. text: the
    same for those who do not see it."""

    name: str
    path: str
    middle: float
    text: str


def page_text(found: Difference, gates: Sequence[GateResult], a: Side, b: Side) -> str:
    """The whole file. a, b: the runs as `compare` leaves them; none where they were not read."""
    shown: list[Distribution] = []
    tables: list[Table] = []
    if found.step is not None:
        shown = make_distributions(found, a, b)
        tables = [_stage_table(found), _quantile_table(shown), _run_table(a, b)]
    return rendered(
        "my_utils.analysis.diff",
        "diff.html.j2",
        title=_title(found),
        data={
            "markdown": markdown(found, gates), "colors": {}, "heat": None, "timeline": None,
            "flames": None, "trace": None,
        },
        tables=tables,
        state=STATE[found.status],
        lines="\n".join([*terminal_lines(found), *map(gate_line, gates)]),
        notes=found.notes,
        parts=list(_parts(found)),
        distributions=[(one, _ends(one), _histograms(one)) for one in shown],
        figures=_figures(found),
    )  # fmt: skip


def _title(found: Difference) -> str:
    if found.step is None:
        return "B and A: not compared"
    if found.status == "no difference":
        return "B against A: no difference is found"
    return f"B against A: {share_text(abs(found.step.share))} {found.status}"


# --- the differences, which add up ---


def adding_up(shares: Sequence[float], total: float, digits: int = DIGITS) -> list[float]:
    """The shares in percent, rounded so that they add up to the rounded total: those that lose most
    by it are rounded up.

    >>> adding_up([0.00333, 0.00333, 0.00334], 0.01, 1)
    [0.3, 0.3, 0.4]
    """
    unit = 10.0**-digits
    exact = [100 * share / unit for share in shares]
    rounded = [int(np.floor(one)) for one in exact]
    left = round(100 * total / unit) - sum(rounded)
    order = sorted(range(len(exact)), key=lambda at: rounded[at] - exact[at])
    for at in order[:left]:
        rounded[at] += 1
    return [round(one * unit, digits) for one in rounded]


def _rounded(found: Difference) -> list[float]:
    """Of each stage, in percent of a step of A."""
    assert found.step is not None
    return adding_up([one.interval.share for one in found.stages], found.step.share)


def _points(value: float) -> str:
    return f"{value + 0.0:+.{DIGITS}f} %".replace("-", "−")


def _parts(found: Difference) -> Iterator[_Part]:
    """Each begins where the one before ends; the last is the whole, from zero on."""
    if found.step is None:
        return
    named, rest = found.stages[:PARTS_SHOWN], found.stages[PARTS_SHOWN:]
    values = _rounded(found)
    shares = [one.interval.share for one in named]
    names = [one.stage for one in named]
    sure = [one.interval.differs for one in named]
    if rest:
        values[PARTS_SHOWN:] = [sum(values[PARTS_SHOWN:])]
        shares.append(sum(one.interval.share for one in rest))
        names.append(f"{len(rest)} other stages")
        sure.append(False)
    edges = np.concatenate([[0.0], np.cumsum(shares)])
    low, span = float(edges.min()), float(np.ptp(edges)) or 1.0
    for at, (name, share) in enumerate(zip(names, shares, strict=True)):
        kind = "more" if share > 0 else "less"
        yield _bar(name, values[at], edges[at], edges[at + 1], low, span, kind, sure[at])
    whole = round(100 * found.step.share, DIGITS)
    yield _bar("the step", whole, 0.0, float(edges[-1]), low, span, "whole", found.step.differs)


def _bar(
    name: str, value: float, begin: float, end: float, low: float, span: float, kind: str,
    sure: bool,
) -> _Part:  # fmt: skip
    left = WIDTH * (min(begin, end) - low) / span
    width = max(WIDTH * abs(end - begin) / span, 2.0)
    return _Part(name, _points(value), float(min(left, WIDTH - width)), float(width), kind, sure)


# --- distributions ---


def _value_text(value: float, unit: str) -> str:
    if unit == "ms":
        return times(value)
    return bytes_text(value) if unit == "bytes" else figure_text(value, 4)


def _ends(one: Distribution) -> tuple[str, str]:
    return _value_text(one.low, one.unit), _value_text(one.high, one.unit)


def _histograms(one: Distribution) -> list[_Histogram]:
    """Both with the same scale."""
    most = max(float(bins.max()) for _, _, bins in one.sides)
    found = []
    for name, values, bins in one.sides:
        middle = float(np.median(values))
        span = (one.high - one.low) or 1.0
        width = WIDTH / len(bins)
        place = min((middle - one.low) / span, 1.0) * (WIDTH - width)
        ninth = _value_text(float(np.quantile(values, 0.9)), one.unit)
        text = f"{name}: half below {_value_text(middle, one.unit)}, nine in ten below {ninth}"
        found.append(_Histogram(name, _path(bins / most), place, text))
    return found


def _path(heights: Matrix) -> str:
    width = WIDTH / len(heights)
    return "".join(
        f"M{at * width:.0f} {HEIGHT:.0f}v{-HEIGHT * height:.1f}h{width - 2:.0f}V{HEIGHT:.0f}z"
        for at, height in enumerate(heights.tolist()) if height > 0
    )  # fmt: skip


# --- tables ---


def _stage_table(found: Difference) -> Table:
    columns = [
        Column("stage", left=True), *map(Column, ("A", "B", "of a step of A", "±", "differs")),
        Column("ranks", left=True),
    ]  # fmt: skip
    rows = [
        [
            Cell(one.stage, left=True), _time(one.a_ns), _time(one.b_ns),
            Cell(_points(value), one.interval.share), _margin(one.interval.margin),
            Cell("yes" if one.interval.differs else ""), Cell(_ranks(one), left=True),
        ]
        for one, value in zip(found.stages, _rounded(found), strict=True)
    ]  # fmt: skip
    rows.append(_row_of_steps("the step", found.a_ns, found.b_ns, found.step))
    rows += [
        _row_of_steps("single steps longer", found.a_whole_ns - found.a_ns,
                      found.b_whole_ns - found.b_ns, found.above),
        _row_of_steps("all steps", found.a_whole_ns, found.b_whole_ns, found.whole),
    ]  # fmt: skip
    note = (
        f"Means of {found.steps} steps of each run, over all ranks, without what single steps take "
        "longer than usual, which is below them. A stage counts without those inside it. The "
        "differences of the stages add up to that of the step. All steps: of a mean step of A."
    )
    return as_table("stages", "Stages", columns, rows, note)


def _row_of_steps(name: str, a_ns: float, b_ns: float, interval: Interval | None) -> list[Cell]:
    assert interval is not None
    return [
        Cell(name, left=True), _time(a_ns), _time(b_ns),
        Cell(change_text(interval.share, DIGITS), interval.share), _margin(interval.margin),
        Cell("yes" if interval.differs else ""),
        Cell("", left=True),
    ]  # fmt: skip


def _time(ns: float) -> Cell:
    return Cell(time_text(ns * 1e-6, 4), ns)


def _margin(share: float) -> Cell:
    return Cell(share_text(share, DIGITS), share)


def _ranks(one: StageDifference) -> str:
    if not one.interval.differs:
        return ""
    return ranges_text(as_ranges(one.ranks)) if one.ranks else "all"


def _quantile_table(shown: Sequence[Distribution]) -> Table:
    heads = [f"p{round(100 * at)}" for at in QUANTILES]
    columns = [Column("what", left=True), Column("side", left=True), *map(Column, heads),
               Column("largest"), Column("steps")]  # fmt: skip
    rows = []
    for one in shown:
        for name, values, _ in one.sides:
            figures = [*np.quantile(values, QUANTILES).tolist(), float(values.max())]
            cells = [Cell(_value_text(value, one.unit), value) for value in figures]
            rows.append([
                Cell(one.name, left=True), Cell(name, left=True), *cells, integer(len(values)),
            ])  # fmt: skip
    note = "All steps of all runs of a side; a step is the mean of its ranks."
    return as_table("quantiles", "Distributions", columns, rows, note)


def _run_table(a: Side, b: Side) -> Table:
    columns = [
        Column("side", left=True), Column("run", left=True),
        *map(Column, ("steps", "ranks", "mean step", "peak memory")),
    ]  # fmt: skip
    rows = []
    for name, side in (("A", a), ("B", b)):
        for run in side:
            peaks = [np.nanmax(one) for one in run.memory.values() if np.isfinite(one).any()]
            rows.append([
                Cell(name, left=True), Cell(run.path, left=True), integer(len(run.step_ns)),
                integer(len(run.parts)), time_of(float(run.step_ns.mean()) * 1e-6),
                bytes_of(float(peaks[0]) if peaks else None),
            ])  # fmt: skip
    return as_table("runs", "Runs", columns, rows, is_open=False)


def _figures(found: Difference) -> list[tuple[str, str, str, str]]:
    """Name, A, B and what is between, of memory and of throughput; each is there."""
    if found.step is None:
        return []
    known = {("memory" if one.name == "memory" else "throughput"): one for one in found.figures}
    return [_figure(name, known.get(name)) for name in ("memory", "throughput")]


def _figure(name: str, one: FigureDifference | None) -> tuple[str, str, str, str]:
    if one is None:
        return name, "", "", "not measured in all runs"
    if one.interval is None:
        off = "; one run a side gives no interval"
    else:
        off = f" ± {share_text(one.interval.margin)}"
    if name == "memory":
        return (
            "peak memory",
            bytes_text(one.a),
            bytes_text(one.b),
            f"{change_text(one.share)}{off}",
        )
    return one.name, f"{one.a:,.1f}", f"{one.b:,.1f}", f"{change_text(one.share)}{off}"
