"""Operations of other tools as the arrays of a run, so that a page shows them in the same way."""

from __future__ import annotations

import numpy as np

from ..replay.graph import Graph
from ..replay.judge import whole_graph
from ..replay.levels import CannotReplay
from ..replay.operations import Floats, Ints, Operations
from ..verdict.run_data import Matrix, RunData, SyncPoint

STAGES_MAX = 24  # names; what takes less time than these becomes one
OTHERS = "other operations"
WAITS = "meetings"


def run_of_operations(operations: Operations) -> RunData:
    """A name is a stage, and what its operations wait for other ranks is a stage of its own, as the
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
    totals = np.zeros(shape)
    np.add.at(totals, (row, column, layer), end - begin - waiting)
    np.add.at(totals[..., -1], (row, column), waiting)
    return RunData(
        ranks=ranks.astype(np.int64), hosts=[operations.hosts.get(int(one), "") for one in ranks],
        world_size=len(ranks), steps=steps.astype(np.int64), stages=names, begins=begins, ends=ends,
        totals=totals, step_begins=step_begins, step_ns=step_ends - step_begins,
        sync_points=[SyncPoint(WAITS)] if waiting.any() else [], problems=operations.notes,
    )  # fmt: skip


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
