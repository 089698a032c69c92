"""Traces of torch.profiler of all ranks: steps by `ProfilerStep#`, meetings by collectives.

Where kernels were recorded, operations are what the device did, each in the step that launched it.
Else they are the outermost slices of the threads that ran forward and backward, and the collectives
of gloo. A step ends where the next one begins.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from ...trace.chrome_json import TraceFileError
from .operations import TOGETHER, Ints, Operations, numbers_of, occurrence_of
from .trace_slices import STEP, Trace, Words


def read_traces(paths: Sequence[str]) -> Operations:
    """The operations in traces, one file a rank. ValueError where none has steps."""
    names, groups, notes = Words(), Words(), []
    ranks: dict[int, dict[str, Ints]] = {}
    hosts: dict[int, str] = {}
    ungrouped = calls = 0
    for path in paths:
        try:
            trace = Trace(path, names, groups)
        except (TraceFileError, EOFError) as error:
            notes.append(f"{error}")
            continue
        if trace.left_out:
            notes.append(f"{path}: {trace.left_out} events are no slices, left out")
        if not trace.steps:
            notes.append(f"{path}: no {STEP} in it, left out")
            continue
        rank = trace.rank if trace.rank is not None else len(ranks)
        if rank in ranks:
            notes.append(f"{path}: another trace of rank {rank}, left out")
            continue
        rows = trace.rows()
        rows["rank"] = np.full(len(rows["step"]), rank)
        ranks[rank] = rows
        if trace.host_name:
            hosts[rank] = trace.host_name
        ungrouped += trace.ungrouped
        calls += int((rows["side"] != TOGETHER).sum())
    if not ranks:
        raise ValueError("; ".join(notes[:3]) or "no traces")
    columns = {key: np.concatenate([rows[key] for rows in ranks.values()]) for key in rows}
    notes += _missing_steps(ranks, columns)
    if ungrouped:
        notes.append(f"{ungrouped} collectives name no group: taken as of all ranks")
    if calls:
        notes.append(f"{calls} point-to-point calls: traces do not say who meets")
    order = np.lexsort((columns["begin"], columns["rank"], columns["step"]))
    columns = {key: value[order] for key, value in columns.items()}
    meeting = np.full(len(order), -1, np.int64)
    met = columns["group"] >= 0
    own = [columns[key][met] for key in ("step", "rank", "group")]
    turn = occurrence_of(numbers_of(*own)[0])
    meeting[met] = numbers_of(own[0], own[2], turn)[0]
    return Operations(
        columns["rank"], columns["lane"], columns["step"], columns["name"], columns["begin"],
        columns["end"], meeting, columns["side"], tuple(names), {}, hosts, notes,
    )  # fmt: skip


def _missing_steps(ranks: dict[int, dict[str, Ints]], columns: dict[str, Ints]) -> list[str]:
    """Keeps the steps that all ranks have."""
    count = Counter(step for rows in ranks.values() for step in np.unique(rows["step"]).tolist())
    common = [step for step, number in count.items() if number == len(ranks)]
    if len(common) == len(count):
        return []
    kept = np.isin(columns["step"], common)
    for key in columns:
        columns[key] = columns[key][kept]
    return [f"{len(count) - len(common)} steps are not in the traces of all ranks, left out"]
