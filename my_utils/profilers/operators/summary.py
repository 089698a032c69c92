"""The results of a comparison by operator and module: as a table, JSON lines and HTML.

>>> summary = OpSummary()
>>> summary.add("torch.ops.aten.mm", "layers.0", "fails", Metrics(max_abs=0.5))
>>> print(summary.table())
operator           module    passed  failed  skipped  max |a-b|  max rel  cosine  SQNR dB  ulp
torch.ops.aten.mm  layers.0       0       1        0        0.5        0       1      inf    0
"""

from __future__ import annotations

import html
import json
import math
import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from ...core.tables import text_table, write_text
from .check import Metrics

Outcome = Literal["succeeds", "fails", "skipped"]

_HEADER = ("operator", "module", "passed", "failed", "skipped")
_FIGURES = ("max |a-b|", "max rel", "cosine", "SQNR dB", "ulp")


@dataclass(slots=True)
class OpRow:
    """One operator in one module. `reasons` counts why calls were skipped."""

    op: str
    module: str
    passed: int = 0
    failed: int = 0
    skipped: int = 0
    worst: Metrics = field(default_factory=Metrics)
    reasons: dict[str, int] = field(default_factory=dict)


class OpSummary:
    """Counts and the worst figures. Rows come in the order in which they were first seen."""

    def __init__(self) -> None:
        self._rows: dict[tuple[str, str], OpRow] = {}

    def add(
        self,
        op: str,
        module: str,
        outcome: Outcome,
        metrics: Metrics | None,
        reason: str = "",
        calls: int = 1,
    ) -> None:
        row = self._rows.get((op, module))
        if row is None:
            row = self._rows[op, module] = OpRow(op, module)
        if outcome == "succeeds":
            row.passed += calls
        elif outcome == "fails":
            row.failed += calls
        else:
            row.skipped += calls
            row.reasons[reason] = row.reasons.get(reason, 0) + calls
        if metrics is not None:
            row.worst.add(metrics)

    @property
    def rows(self) -> list[OpRow]:
        return list(self._rows.values())

    @property
    def passed(self) -> int:
        return sum(row.passed for row in self._rows.values())

    @property
    def failed(self) -> int:
        return sum(row.failed for row in self._rows.values())

    @property
    def skipped(self) -> int:
        return sum(row.skipped for row in self._rows.values())

    def by_op(self) -> OpSummary:
        """The same without modules."""
        return self._grouped(lambda row: (row.op, ""))

    def by_module(self) -> OpSummary:
        """The same without operators."""
        return self._grouped(lambda row: ("", row.module))

    def _grouped(self, key: Any) -> OpSummary:
        grouped = OpSummary()
        for row in self._rows.values():
            found = grouped._rows.setdefault(key(row), OpRow(*key(row)))
            found.passed += row.passed
            found.failed += row.failed
            found.skipped += row.skipped
            found.worst.add(row.worst)
            for reason, count in row.reasons.items():
                found.reasons[reason] = found.reasons.get(reason, 0) + count
        return grouped

    def worst(self, limit: int | None = None) -> list[OpRow]:
        """Most failures first, then the farthest off."""
        rows = sorted(self.rows, key=lambda row: (-row.failed, -row.worst.max_rel))
        return rows if limit is None else rows[:limit]

    # --- as text ---

    def table(self, limit: int | None = 20) -> str:
        """The worst rows as text; None for all of them."""
        return text_table([*_HEADER, *_FIGURES], [_cells(row) for row in self.worst(limit)], left=2)

    def lines(self) -> Iterable[str]:
        """A JSON object a row. Later versions only add keys; "inf" and "nan" are texts."""
        for row in self.rows:
            yield json.dumps(_plain(asdict(row)))

    def write_jsonl(self, path: str | os.PathLike[str]) -> None:
        """Whole or absent. OSError if it cannot be written."""
        write_text(path, "".join(f"{line}\n" for line in self.lines()))

    def write_html(self, path: str | os.PathLike[str]) -> None:
        """One page with no scripts and nothing from elsewhere. OSError as above."""
        write_text(path, self.html())

    def html(self) -> str:
        counts = f"{self.passed} passed, {self.failed} failed, {self.skipped} skipped"
        sections = (
            ("Worst first", self.worst()),
            ("By operator", self.by_op().worst()),
            ("By module", self.by_module().worst()),
        )
        tables = "".join(f"<h2>{title}</h2>{_html_table(rows)}" for title, rows in sections)
        return (
            "<!doctype html><meta charset=utf-8><title>Operators compared</title><style>"
            "body{font:14px sans-serif;margin:2em}td,th{padding:2px 10px;text-align:right}"
            "td:nth-child(-n+2),th:nth-child(-n+2){text-align:left}tr.bad{background:#fdd}"
            f"</style><h1>Operators compared</h1><p>{counts}</p>{tables}\n"
        )


def _cells(row: OpRow) -> list[str]:
    counts = (row.passed, row.failed, row.skipped)
    worst = row.worst
    figures = (worst.max_abs, worst.max_rel, worst.cosine, worst.sqnr_db, worst.ulp)
    return [row.op, row.module, *map(str, counts), *(f"{figure:.3g}" for figure in figures)]


def _html_table(rows: list[OpRow]) -> str:
    head = "".join(f"<th>{html.escape(title)}</th>" for title in (*_HEADER, *_FIGURES))
    body = "".join(
        f"<tr{' class=bad' if row.failed else ''}>"
        + "".join(f"<td>{html.escape(cell)}</td>" for cell in _cells(row))
        + "</tr>"
        for row in rows
    )
    return f"<table><tr>{head}</tr>{body}</table>"


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value
