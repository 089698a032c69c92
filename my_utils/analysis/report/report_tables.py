"""The tables that only a `Report` has, for the page."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..pages.tables import Cell, Column, Table, as_table, integer, percent, time_of

if TYPE_CHECKING:
    from .analysis import Report
    from .page import StepTrace


def tables_of(report: Report, links: dict[int, StepTrace]) -> list[Table]:
    """Stragglers by their scores, stages that changed, parallel groups, hidden communication."""
    return [_stragglers(report, links), _changes(report), _groups(report), _overlap(report)]


def _stragglers(report: Report, links: dict[int, StepTrace]) -> Table:
    columns = [
        Column("rank"), Column("host", left=True), Column("stage", left=True),
        Column("kind", left=True), *map(Column, ("steps", "cost", "saved", "slower", "score")),
        Column("peers"), Column("worst step", left=True),
    ]  # fmt: skip
    rows = [
        [
            integer(one.rank), Cell(one.host, left=True), Cell(one.stage, left=True),
            Cell(_kind(one), left=True), integer(len(one.steps)), time_of(one.cost_s * 1e3),
            time_of(one.saved_s * 1e3), percent(one.slower_percent / 100),
            Cell(f"{one.score:.1f}", one.score), Cell(f"{one.peer_score:.1f}", one.peer_score),
            _link(links.get(place)),
        ]
        for place, one in enumerate(report.stragglers)
    ]  # fmt: skip
    note = (
        "The score is the distance from the median, in units of the scatter. The column peers has "
        "the largest score of the ranks that are not named."
    )
    return as_table("stragglers", "Stragglers", columns, rows, note)


def _kind(one: Any) -> str:
    return one.kind if one.since is None else f"{one.kind}, since step {one.since}"


def _link(trace: StepTrace | None) -> Cell:
    if trace is None:
        return Cell("", left=True)
    return Cell(f"trace of step {trace.step}", left=True, href=trace.href)


def _changes(report: Report) -> Table:
    columns = [Column("stage", left=True), *map(Column, ("from step", "before", "after"))]
    rows = [
        [
            Cell(one.stage, left=True), integer(one.step), time_of(one.before_ms),
            time_of(one.after_ms),
        ]
        for one in report.changes
    ]  # fmt: skip
    return as_table("changes", "Stages that changed", columns, rows)


def _groups(report: Report) -> Table:
    columns = [
        Column("group", left=True), *map(Column, ("ranks", "stragglers", "step", "waited", "cost")),
    ]  # fmt: skip
    rows = [
        [
            Cell(f"{row['group']} {row['place']}", left=True), integer(row["ranks"]),
            integer(row["stragglers"]), time_of(row["step_ms"]), time_of(row["waited_s"] * 1e3),
            time_of(row["cost_s"] * 1e3),
        ]
        for row in report.groups.to_dict("records")
    ]  # fmt: skip
    return as_table("groups", "Parallel groups", columns, rows, is_open=False)


def _overlap(report: Report) -> Table:
    columns = [Column("rank"), *map(Column, ("communication", "hidden", "share hidden"))]
    rows = [
        [
            integer(row["rank"]), time_of(row["communication_s"] * 1e3),
            time_of(row["hidden_s"] * 1e3),
            percent(row["hidden_share"]) if row["communication_s"] else Cell("", ""),
        ]
        for row in report.overlap.to_dict("records")
    ]  # fmt: skip
    return as_table("overlap", "Communication behind compute", columns, rows)
