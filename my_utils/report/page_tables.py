"""The tables of the page: what stands in each cell, and the exact value by which it is sorted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..common.ranges import as_ranges, ranges_text
from ..verdict.result import Finding
from ..verdict.run_data import Matrix, RunData
from .bars import row_means

__all__ = [
    "Cell",
    "Column",
    "Table",
    "as_table",
    "finding_table",
    "host_table",
    "integer",
    "percent",
    "rank_table",
    "stage_table",
    "time_of",
    "times",
]

ROWS_MAX = 1_000  # of a table in the page


@dataclass(frozen=True)
class Column:
    name: str
    left: bool = False


@dataclass(frozen=True)
class Cell:
    """value: what it is sorted by; None sorts by the text, "" comes last. href: where it leads."""

    text: str
    value: float | int | str | None = None
    left: bool = False
    href: str = ""


@dataclass(frozen=True)
class Table:
    """name: its id in the page. left_out: rows that are more than the page holds."""

    name: str
    title: str
    columns: Sequence[Column]
    rows: Sequence[Sequence[Cell]]
    note: str = ""
    is_open: bool = True
    left_out: int = 0


def times(ms: float | None) -> str:
    """A time with three significant digits in its own unit.

    >>> times(92.345), times(41_000.0), times(0.0123), times(None)
    ('92.3 ms', '41 s', '12.3 µs', '')
    """
    if ms is None or not np.isfinite(ms):
        return ""
    for factor, unit in ((1e-3, "s"), (1.0, "ms"), (1e3, "µs")):
        if abs(ms) * factor >= 0.9995 or unit == "µs":
            return f"{_three_digits(ms * factor)} {unit}"
    raise AssertionError("the last unit takes every time")


def _three_digits(value: float) -> str:
    """Without an exponent and without zeros at its end: 1234.0 is 1230."""
    text = np.format_float_positional(value, precision=3, fractional=False, trim="-")
    return str(text)


def finding_table(findings: Sequence[Finding]) -> Table:
    """All that the verdict found, the most costly first."""
    columns = [
        Column("what", left=True), Column("ranks", left=True), Column("hosts", left=True),
        Column("stage", left=True), *map(Column, ("cost per step", "share", "since step")),
    ]  # fmt: skip
    rows = [
        [
            Cell(one.kind, left=True), Cell(ranges_text(as_ranges(one.ranks)), left=True),
            Cell(", ".join(one.hosts), left=True), Cell(one.stage or "", left=True),
            time_of(one.cost_ns_a_step * 1e-6), percent(one.share),
            Cell("", "") if one.since_step is None else integer(one.since_step),
        ]
        for one in findings
    ]  # fmt: skip
    return as_table("findings", "What was found", columns, rows)


def stage_table(run: RunData, warmup: int, sync_stages: Sequence[str]) -> Table:
    """What a stage takes a rank in a step, without the stages inside it, over all ranks and steps
    behind the warm-up."""
    columns = [
        Column("stage", left=True), *map(Column, ("mean", "p50", "p99", "longest", "share")),
        Column("slowest rank"),
    ]  # fmt: skip
    steps = run.step_ns[:, warmup:]
    whole = float(np.nansum(steps))
    rows = []
    for layer, name in enumerate(run.stages):
        took = np.where(np.isfinite(steps), run.totals[:, warmup:, layer], np.nan)
        known = took[np.isfinite(took)]
        if known.size == 0 or known.max() <= 0:
            continue
        by_rank = row_means(took)
        waits = " (ranks wait here)" if name in sync_stages else ""
        figures = (known.mean(), np.quantile(known, 0.5), np.quantile(known, 0.99), known.max())
        rows.append([
            Cell(name + waits, left=True),
            *(time_of(float(ns) * 1e-6) for ns in figures),
            percent(float(known.sum()) / whole if whole else 0.0),
            integer(int(run.ranks[int(np.nanargmax(by_rank))])),
        ])  # fmt: skip
    note = (
        "Each figure is the time of one rank in one step, without the stages inside. The warm-up "
        "is left out."
    )
    return as_table("stages", "Stages", columns, rows, note)


def rank_table(run: RunData, warmup: int, waited: Matrix) -> Table:
    """A row a rank: its step, what it waited by `waits_ns`, and its last step."""
    columns = [
        Column("rank"), Column("host", left=True),
        *map(Column, ("step", "works", "waits", "last step", "memory")),
    ]  # fmt: skip
    steps = row_means(run.step_ns[:, warmup:])
    waits = row_means(waited[:, warmup:])
    memory = run.counters.get("rss_bytes")
    rows = []
    for row, rank in enumerate(run.ranks.tolist()):
        known = np.flatnonzero(np.isfinite(run.step_ns[row]))
        rows.append([
            integer(rank),
            Cell(run.hosts[row] if len(run.hosts) else "", left=True),
            time_of(steps[row] * 1e-6),
            time_of(max(steps[row] - waits[row], 0.0) * 1e-6),
            time_of(min(waits[row], steps[row]) * 1e-6),
            integer(int(run.steps[known[-1]])) if known.size else Cell("", ""),
            bytes_of(None if memory is None else _last(memory[row])),
        ])  # fmt: skip
    return as_table("ranks", "Ranks", columns, rows)


def host_table(run: RunData, warmup: int, waited: Matrix) -> Table:
    """The same means over the ranks of each host; empty where there is one host."""
    columns = [Column("host", left=True), *map(Column, ("ranks", "step", "works", "waits"))]
    hosts = np.array(run.hosts if len(run.hosts) else [""] * len(run.ranks))
    steps = row_means(run.step_ns[:, warmup:])
    waits = np.minimum(row_means(waited[:, warmup:]), steps)
    names = np.unique(hosts)
    rows = []
    for name in names if len(names) > 1 else ():
        own = (hosts == name) & np.isfinite(steps)
        if not own.any():
            continue
        step, wait = float(steps[own].mean()), float(waits[own].mean())
        rows.append([
            Cell(str(name), left=True), integer(int(own.sum())), time_of(step * 1e-6),
            time_of((step - wait) * 1e-6), time_of(wait * 1e-6),
        ])  # fmt: skip
    return as_table("hosts", "Hosts", columns, rows, is_open=False)


def as_table(
    name: str, title: str, columns: Sequence[Column], rows: Sequence[Sequence[Cell]],
    note: str = "", is_open: bool = True,
) -> Table:  # fmt: skip
    left_out = max(len(rows) - ROWS_MAX, 0)
    return Table(name, title, columns, rows[:ROWS_MAX], note, is_open, left_out)


def _last(series: Matrix) -> float | None:
    known = series[np.isfinite(series)]
    return float(known[-1]) if known.size else None


def time_of(ms: float) -> Cell:
    return Cell(times(ms), float(ms) if np.isfinite(ms) else "")


def integer(value: int) -> Cell:
    return Cell(str(value), value)


def percent(share: float) -> Cell:
    return Cell(f"{share:.1%}".replace("%", " %"), share)


def bytes_of(count: float | None) -> Cell:
    return Cell("", "") if count is None else Cell(f"{count / 2**20:,.0f} MiB", count)
