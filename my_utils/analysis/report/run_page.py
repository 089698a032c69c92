"""The page of a run out of its files: arrays, verdict, and the worst step span by span."""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ...core.ranges import as_ranges, ranges_text
from ..ledger.read import LedgerReader
from ..replay.graph import Graph
from ..replay.inputs import chosen_operations, holds_operations
from ..replay.judge import judge_operations, whole_graph
from ..replay.levels import CannotReplay
from ..replay.operations import Floats, Ints, Operations
from ..replay.spans import Spans
from ..verdict.device import by_the_device
from ..verdict.load import NothingToJudge
from ..verdict.rank_files import RankStages, find_rank_files, last_run, read_rank
from ..verdict.result import Verdict
from ..verdict.run_data import Matrix, RunData, SyncPoint
from ..verdict.shown import about
from ..verdict.waits import meeting_stages
from .flames import Profiled
from .judged import NONE_ASKED_FOR, Source, judged, meetings_in, rows_shown
from .page import Page, PageTrace
from .page_tables import finding_table, make_tables
from .worst_step import WorstStep, find_worst_step

if TYPE_CHECKING:
    from ..ledger.ledger import Ledger
    from .analysis import Report
    from .page import StepTrace


RANKS_IN_STEP = 4
TRACE_BYTES_MAX = 4_000_000  # before it is deflated to about a tenth
STAGES_MAX = 24  # names; what takes less time than these becomes one
OTHERS = "other operations"
WAITS = "meetings"


def make_page(source: Source) -> Page:
    """Reads and judges the run, or what other tools wrote. Raises NothingToJudge, a ValueError,
    where no rank can be read."""
    if holds_operations(source.paths):
        return _page_of_operations(source)
    profiled = Profiled(source.paths, source.ranks)
    reader = LedgerReader()

    def take(rank: RankStages) -> None:
        profiled.take(rank)
        reader.add(rank)

    run, (verdict, timeline, _) = judged(source, take)
    reader.choose(run)
    run = by_the_device(run) or run
    meet = meeting_stages(run, meetings_in(run, verdict.warmup))
    page = Page(run, verdict, meet, timeline=timeline).of_rows(rows_shown(run, source.ranks))
    page.tables = [finding_table(verdict.findings)]
    page.flames = profiled.flames()
    page.ledger = reader.ledger(ranks=source.ranks)
    column = _worst_column(page)
    if column is not None:
        chosen, step = _ranks_beside(page, column), int(page.judged.steps[column])
        page.worst = _worst_step(source.paths, chosen, step)
        page.trace = _make_trace(source.paths, chosen, step)
    return page


def _page_of_operations(source: Source) -> Page:
    try:
        operations = chosen_operations(source.paths, None, source.steps)
    except (OSError, ValueError, ImportError) as error:
        raise NothingToJudge(str(error)) from error
    if not len(operations):
        raise NothingToJudge("no operations of these steps")
    verdict: Verdict = judge_operations(operations, source.paths, source.warmup)
    run = run_of_operations(operations)
    rows = rows_shown(run, source.ranks)
    if not len(rows):
        raise NothingToJudge(NONE_ASKED_FOR)
    if source.ranks is not None:
        verdict = about(verdict, source.ranks, run.ranks.tolist())
    meet = [point.stage for point in run.sync_points or ()]
    return Page(run, verdict, meet, tables=[finding_table(verdict.findings)]).of_rows(rows)


def page_of_report(report: Report, links: dict[int, StepTrace] | None = None) -> Page:
    """The page of what a report was read from, with its tables. links: by the place of a
    straggler, the trace of its worst step."""
    page = make_page(report.source)
    page.tables = [*page.tables, *make_tables(report, links or {})]
    page.problems = report.problems
    return page


def ledger_of_report(report: Report) -> Ledger | None:
    """Of the files that were analysed, which are read once more; None where they have none."""
    reader = LedgerReader()
    run, _ = judged(report.source, reader.add)
    reader.choose(run)
    return reader.ledger(ranks=report.source.ranks)


def _worst_column(page: Page) -> int | None:
    """The judged step that took the ranks longest. None where steps are counted through several
    attempts: their numbers are not the files'."""
    took_ns = np.nan_to_num(page.judged.step_ns).sum(0)
    return None if page.run.renumbered or not len(took_ns) else int(took_ns.argmax())


def _ranks_beside(page: Page, column: int) -> list[int]:
    """The rank that is named, if it is shown, then those that waited longest in the step."""
    there = set(page.run.ranks.tolist())
    named = [rank for one in page.verdict.findings[:1] for rank in one.ranks[:1] if rank in there]
    waits = page.waited[:, column]
    if not named:
        named = [int(page.run.ranks[int(np.argmin(waits))])]
    order = page.run.ranks[np.argsort(-waits, kind="stable")].tolist()
    return [*named, *(rank for rank in order if rank not in named)][:RANKS_IN_STEP]


def _worst_step(paths: Sequence[str], ranks: Sequence[int], step: int) -> WorstStep | None:
    file_sets, _ = find_rank_files(paths, set(ranks))
    read = {one.rank: last_run(read_rank(one)) for one in file_sets}
    spans = find_worst_step([read[rank] for rank in ranks if rank in read], step)
    return spans if any(one.spans for one in spans.ranks) else None


def _make_trace(paths: Sequence[str], ranks: Sequence[int], step: int) -> PageTrace | None:
    """The trace of the same ranks and step for Perfetto; None where it cannot be made, or is too
    large for a page that one forwards."""
    from ...trace.csv2trace import ConversionError, ConversionWarning, csv_to_trace

    name = f"step{step}_ranks{ranges_text(as_ranges(ranks))}.pftrace"
    with (
        tempfile.TemporaryDirectory(prefix="my_utils_report_") as folder,
        warnings.catch_warnings(),
    ):
        path = Path(folder, "trace.pftrace")
        try:
            # What is wrong with the files is in the page already.
            warnings.simplefilter("ignore", ConversionWarning)
            csv_to_trace(list(paths), path, ranks=set(ranks), steps=(step, step + 1), recover=True)
            content = path.read_bytes()
        except (ConversionError, OSError):
            return None
    return PageTrace(name, content) if len(content) <= TRACE_BYTES_MAX else None


def run_of_operations(operations: Operations) -> RunData:
    """Operations of other tools as the arrays of a run, so that a page shows them in the same way.

    A name is a stage, and what its operations wait for other ranks is a stage of its own, as the
    replay takes them apart. What ran on several lanes at once counts in each, so that the stages of
    a step may take longer than the step. operations: at least one."""
    operations = operations.in_order()
    waiting: Floats
    try:
        graph, operations = whole_graph(operations)
        waiting = np.bincount(graph.node_rows, _waits(graph), len(operations))
    except CannotReplay:
        waiting = np.zeros(len(operations))
    ranks, row = np.unique(operations.rank, return_inverse=True)
    steps, column = np.unique(operations.step, return_inverse=True)
    names, layer = _stages(operations)
    first_ns = int(operations.begin_ns.min())
    begin = (operations.begin_ns - first_ns).astype(np.float64)
    end = (operations.end_ns - first_ns).astype(np.float64)
    shape = (len(ranks), len(steps), len(names))
    begins, ends = _spans(shape, (row, column, layer), begin, end)
    step_begins, step_ends = _spans(shape[:2], (row, column), begin, end)
    _begin_at_marks(step_begins, operations.marked_ns, ranks, steps, first_ns)
    begins[..., -1] = ends[..., -1] = step_ends  # of the waits, which have no operations
    totals = np.zeros(shape)
    np.add.at(totals, (row, column, layer), end - begin - waiting)
    since = begin - step_begins[row, column]
    totals[..., -1] = _waited(row * len(steps) + column, since, waiting, shape[:2])
    return RunData(
        ranks=ranks.astype(np.int64), hosts=[operations.hosts.get(int(one), "") for one in ranks],
        world_size=len(ranks), steps=steps.astype(np.int64), stages=names, begins=begins, ends=ends,
        totals=totals, step_begins=step_begins, step_ns=step_ends - step_begins,
        sync_points=[SyncPoint(WAITS)] if waiting.any() else [], problems=operations.notes,
    )  # fmt: skip


def _waited(cell: Ints, since: Floats, waiting: Floats, shape: tuple[int, ...]) -> Matrix:
    """How long each rank waits in each step. Collectives of several lanes are waited for at once:
    that time counts once. since: of each operation, from the begin of its step."""
    rows = np.flatnonzero(waiting > 0)
    width = 2.0 ** np.ceil(np.log2(float(np.max((since + waiting)[rows], initial=0.0)) + 2.0))
    begins = cell[rows] * width + since[rows]
    spans = Spans.union(begins, begins + waiting[rows])
    found = np.zeros(shape)
    np.add.at(found.ravel(), (spans.begins // width).astype(np.int64), spans.ends - spans.begins)
    return found


def _begin_at_marks(
    step_begins: Matrix,
    marked_ns: dict[int, dict[int, tuple[int, int]]],
    ranks: Ints,
    steps: Ints,
    first_ns: int,
) -> None:
    """A step begins where the source marks it, which may be long before its first operation."""
    for row, rank in enumerate(ranks.tolist()):
        marks = marked_ns.get(rank, {})
        for column, step in enumerate(steps.tolist()):
            if step in marks:
                mark_ns = float(marks[step][0] - first_ns)
                step_begins[row, column] = min(step_begins[row, column], mark_ns)


def _waits(graph: Graph) -> Floats:
    """Of each node the time in which it waits for other ranks."""
    transfer = np.zeros(len(graph.rank))
    transfer[graph.member_node] = graph.weights.transfer[graph.member_meeting]
    waits = graph.end_ns - graph.begin_ns - graph.weights.own - transfer
    return np.where(graph.meets, np.maximum(waits, 0.0), 0.0)


def _stages(operations: Operations) -> tuple[list[str], Ints]:
    """The names that take most time, and of each operation its place among them."""
    length = (operations.end_ns - operations.begin_ns).astype(np.float64)
    took = np.bincount(operations.name, length, len(operations.names))
    most = [int(one) for one in np.argsort(-took, kind="stable")[:STAGES_MAX] if took[one] > 0]
    place = np.full(len(operations.names), len(most))
    place[most] = np.arange(len(most))
    return [*(operations.names[one] for one in most), OTHERS, WAITS], place[operations.name]


def _spans(
    shape: tuple[int, ...], cells: tuple[Ints, ...], begin: Matrix, end: Matrix
) -> tuple[Matrix, Matrix]:
    """The first begin and the last end in each cell; NaN where it has none."""
    begins, ends = np.full(shape, np.inf), np.full(shape, -np.inf)
    np.minimum.at(begins, cells, begin)
    np.maximum.at(ends, cells, end)
    begins[~np.isfinite(begins)] = ends[~np.isfinite(ends)] = np.nan
    return begins, ends
