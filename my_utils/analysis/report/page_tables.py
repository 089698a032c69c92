"""The tables of a report's page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ...core.ranges import as_ranges, ranges_text
from ..pages.tables import Cell, Column, Table, as_table, bytes_of, integer, percent, time_of
from ..verdict.device import LAUNCH
from ..verdict.result import Finding
from ..verdict.run_data import Matrix, RunData
from .bars import row_means

if TYPE_CHECKING:
    from .analysis import Report
    from .page import StepTrace


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


def stage_table(run: RunData, waits: Mapping[str, Matrix]) -> Table:
    """What a stage takes a rank in a step, without the stages inside it, over all ranks and steps.
    waits: of the stages in which ranks meet, what each rank waits there."""
    columns = [
        Column("stage", left=True),
        *map(Column, ("mean", "waits", "p50", "p99", "longest", "share")), Column("slowest rank"),
    ]  # fmt: skip
    steps = run.step_ns
    whole = float(np.nansum(steps))
    rows = []
    for layer, name in enumerate(run.stages):
        took = np.where(np.isfinite(steps), run.totals[..., layer], np.nan)
        known = took[np.isfinite(took)]
        if known.size == 0 or known.max() <= 0:
            continue
        by_rank = row_means(took)
        waited = waits[name][np.isfinite(took)].mean() if name in waits else None
        figures = (np.quantile(known, 0.5), np.quantile(known, 0.99), known.max())
        rows.append([
            Cell(name if waited is None else f"{name} (ranks wait here)", left=True),
            time_of(float(known.mean()) * 1e-6),
            Cell("", "") if waited is None else time_of(float(waited) * 1e-6),
            *(time_of(float(ns) * 1e-6) for ns in figures),
            percent(float(known.sum()) / whole if whole else 0.0),
            integer(int(run.ranks[int(np.nanargmax(by_rank))])),
        ])  # fmt: skip
    note = (
        "Each figure is the time of one rank in one step, without the stages inside. Steps that "
        "the verdict does not judge are left out. Of the mean, ranks wait so long for one another; "
        "the rest is what the stage takes the rank that comes last."
    )
    if LAUNCH in run.stages:
        note += f" Stages have the time of the GPU; in {LAUNCH} the GPU waits for the host."
    return as_table("stages", "Stages", columns, rows, note)


def rank_table(run: RunData, judged: RunData, waited: Matrix) -> Table:
    """A row a rank: its step, what it waited for others, and its last step. judged: the judged
    steps of the run; waited: in these."""
    columns = [
        Column("rank"), Column("host", left=True),
        *map(Column, ("step", "works", "waits", "last step", "memory")),
    ]  # fmt: skip
    steps = row_means(judged.step_ns)
    waits = row_means(waited)
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


def host_table(run: RunData, waited: Matrix) -> Table:
    """The same means over the ranks of each host; empty where there is one host."""
    columns = [Column("host", left=True), *map(Column, ("ranks", "step", "works", "waits"))]
    hosts = np.array(run.hosts if len(run.hosts) else [""] * len(run.ranks))
    steps = row_means(run.step_ns)
    waits = np.minimum(row_means(waited), steps)
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


def _last(series: Matrix) -> float | None:
    known = series[np.isfinite(series)]
    return float(known[-1]) if known.size else None


# --- those that only a `Report` has ---


def make_tables(report: Report, links: dict[int, StepTrace]) -> list[Table]:
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
