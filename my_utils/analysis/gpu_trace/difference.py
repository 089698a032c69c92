"""Two traces compared: what a device's time went to in each, row by row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypedDict

import numpy as np

from ...core.units import count_text, percent_text, time_text
from .breakdown import ROWS, Breakdown


class RowDifferenceData(TypedDict):
    """A row of both.

    row: its name, "sum" for all of them.
    a_ns: what it takes a device in A.
    b_ns: the same in B.
    """

    row: str
    a_ns: int
    b_ns: int


class TraceDifferenceData(TypedDict):
    """Where the time of devices goes in two traces.

    per_step: times are those of a step; else of the whole traces, for one of them marks no steps.
    a: the traces of A.
    b: the traces of B.
    rows: the one with the largest difference first, the sum last.
    """

    version: int
    per_step: bool
    a: list[str]
    b: list[str]
    rows: list[RowDifferenceData]


@dataclass(frozen=True)
class TraceDifference:
    """rows: by name what each takes a device in A and in B, ns; of a step if `per_step`, else of
    the whole traces, for one of them marks no steps. Means over the devices of a side."""

    per_step: bool
    a: tuple[str, ...]
    b: tuple[str, ...]
    rows: dict[str, tuple[int, int]]

    @property
    def total(self) -> tuple[int, int]:
        a, b = zip(*self.rows.values(), strict=True)
        return sum(a), sum(b)

    def lines(self) -> list[str]:
        """For a terminal: the sum, then the rows, the one with the largest difference first."""
        a, b = self.total
        of = "a step" if self.per_step else "in all"
        change = f": {percent_text(b / a - 1, sign=True)}" if a else ""
        head = f"B takes a device {time_text(b * 1e-6)} {of}, A {time_text(a * 1e-6)}{change}"
        unmarked = "" if self.per_step else "; a trace marks no steps"
        foot = f"{_traces(self.a)} and {_traces(self.b)}{unmarked}"
        return [head, f"  {'':<38} {'A':>10} {'B':>10} {'B - A':>10}", *self._table(), foot]

    def _table(self) -> list[str]:
        return [
            f"  {row:<38} {_ms(a):>10} {_ms(b):>10} {_ms(b - a, sign=True):>10}"
            for row, (a, b) in (*self._ordered(), ("sum", self.total))
        ]

    def _ordered(self) -> list[tuple[str, tuple[int, int]]]:
        known = [(row, pair) for row, pair in self.rows.items() if any(pair)]
        return sorted(known, key=lambda one: -abs(one[1][1] - one[1][0]))

    def as_data(self) -> TraceDifferenceData:
        return {
            "version": 1,
            "per_step": self.per_step,
            "a": list(self.a),
            "b": list(self.b),
            "rows": [
                {"row": row, "a_ns": a, "b_ns": b}
                for row, (a, b) in (*self._ordered(), ("sum", self.total))
            ],
        }


def difference(a: Sequence[Breakdown], b: Sequence[Breakdown]) -> TraceDifference:
    """a, b: the devices of each side, at least one."""
    per_step = all(one.steps for one in (*a, *b))
    rows = {row: (_mean(a, row, per_step), _mean(b, row, per_step)) for row in ROWS}
    return TraceDifference(per_step, _paths(a), _paths(b), rows)


def _paths(side: Sequence[Breakdown]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(one.path for one in side))


def _mean(side: Sequence[Breakdown], row: str, per_step: bool) -> int:
    return round(np.mean([one.rows[row] / (one.steps if per_step else 1) for one in side]))


def _ms(ns: int, *, sign: bool = False) -> str:
    return f"{'+' if sign and ns > 0 else ''}{ns * 1e-6:,.3f} ms"


def _traces(paths: Sequence[str]) -> str:
    return count_text(len(paths), "trace") if len(paths) > 1 else paths[0]
