"""Tables of Megatron's timers, as published with arXiv 2505.05713.

The columns are rank, step, optype, start_ts, duration (both in seconds), stage and dp_rank.
"""

from __future__ import annotations

import numpy as np

from .operations import RECEIVE, SEND, TOGETHER, Ints, Operations
from .table_files import BadTable, Column
from .table_meetings import number_meetings, of_ranks

MEGATRON = {"rank", "step", "optype", "start_ts", "duration", "stage", "dp_rank"}

TIME_MAX_S = 4e9  # so that nanoseconds have 64 bits

# Who meets in a collective of Megatron: the ranks of a stage, or those of one pipeline.
OF_A_STAGE = ("grads-reduce-scatter", "params-all-gather", "grads-all-reduce")
OF_A_PIPELINE = ("embedding-grads-all-reduce",)
CALLS = {
    "forward-send": (SEND, 1),
    "forward-recv": (RECEIVE, 1),
    "backward-send": (SEND, -1),
    "backward-recv": (RECEIVE, -1),
}  # the side, and to which stage what is sent goes


def megatron_operations(columns: dict[str, Column]) -> Operations:
    """The operations in such columns, which are taken out of the dictionary one by one."""
    begin_s = columns.pop("start_ts").numbers("start_ts").astype(np.float64)
    length_s = columns.pop("duration").numbers("duration").astype(np.float64)
    if not ((np.abs(begin_s) < TIME_MAX_S).all() and (np.abs(length_s) < TIME_MAX_S).all()):
        raise BadTable("columns 'start_ts' and 'duration' have rows without a number of seconds")
    begin = np.rint(begin_s * 1e9).astype(np.int64)
    end = np.rint((begin_s + length_s) * 1e9).astype(np.int64)
    del begin_s, length_s
    number, names = columns.pop("optype").places("optype")
    whole = {one: columns.pop(one).whole(one, below=1 << 31) for one in list(columns)}
    whole["optype"] = number
    order = np.lexsort((end, begin, whole["rank"], whole["step"]))
    for one in whole:
        whole[one] = whole[one][order]
    begin, end = begin[order], end[order]
    name, rank, stage = whole["optype"], whole["rank"], whole["stage"]
    calls = [CALLS.get(one, (TOGETHER, 0)) for one in names]
    side = np.array([one for one, _ in calls])[name]
    meeting = np.full(len(order), -1, np.int64)
    _pipeline_calls(meeting, whole, side, np.array([way for _, way in calls])[name])
    for kinds, group in ((OF_A_STAGE, "stage"), (OF_A_PIPELINE, "dp_rank")):
        for kind in kinds:
            if kind in names:
                rows = name == names.index(kind)
                place = (whole["step"], whole[group])
                number_meetings(meeting, rows, {"step": whole["step"]}, place, (rank,))
    lanes = [1 + index if _is_communication(one) else 0 for index, one in enumerate(names)]
    between = int(np.gcd.reduce(rank))
    notes = [f"of each {between} ranks one is recorded"] if between > 1 else []
    return Operations(
        rank, np.array(lanes)[name], whole["step"], name, begin, end, meeting, side,
        names, of_ranks(rank, stage), {}, notes,
    )  # fmt: skip


def _is_communication(name: str) -> bool:
    return name in CALLS or name in OF_A_STAGE or name in OF_A_PIPELINE


def _pipeline_calls(meeting: Ints, whole: dict[str, Ints], side: Ints, way: Ints) -> None:
    """The nth call that a stage sends is the nth that the next one receives; with several model
    chunks the last stage sends to the first."""
    rows = side != TOGETHER
    if not rows.any():
        return
    stages = int(whole["stage"].max()) + 1
    sender = np.where(side == SEND, whole["stage"], (whole["stage"] - way) % stages)
    place = (whole["step"], whole["dp_rank"], sender, way)
    number_meetings(
        meeting, rows, {"step": whole["step"]}, place, (whole["rank"], sender, way, side)
    )
