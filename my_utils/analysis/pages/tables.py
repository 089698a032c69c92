"""Tables of a page: the text of each cell, and the exact value for sorting."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ...core.units import percent_text, time_text

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
    """A time with three significant digits in its own unit; "" for None and NaN."""
    return "" if ms is None else time_text(ms)


def as_table(
    name: str, title: str, columns: Sequence[Column], rows: Sequence[Sequence[Cell]],
    note: str = "", is_open: bool = True,
) -> Table:  # fmt: skip
    left_out = max(len(rows) - ROWS_MAX, 0)
    return Table(name, title, columns, rows[:ROWS_MAX], note, is_open, left_out)


def time_of(ms: float) -> Cell:
    return Cell(times(ms), float(ms) if np.isfinite(ms) else "")


def integer(value: int) -> Cell:
    return Cell(str(value), value)


def percent(share: float) -> Cell:
    return Cell(percent_text(share), share)


def bytes_of(count: float | None) -> Cell:
    return Cell("", "") if count is None else Cell(f"{count / 2**20:,.0f} MiB", count)
