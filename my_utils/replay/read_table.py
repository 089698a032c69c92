"""Tables of operations, a row each, as Parquet or CSV.

Two sets of columns are read. The plain one: rank, step, name, begin_ns, end_ns, and what there is
of lane, group, sequence, peer, stage, host. That of Megatron's timers, as published with
arXiv 2505.05713: rank, step, optype, start_ts, duration (seconds), stage, dp_rank, seq_id, mc.
"""

from __future__ import annotations

import numpy as np

from .operations import RECEIVE, SEND, TOGETHER, Ints, Operations, numbers_of, occurrence_of
from .table_files import BadTable, Column, columns_of, header_of

PLAIN = {"rank", "step", "name", "begin_ns", "end_ns"}
PLAIN_MORE = {"lane", "group", "sequence", "peer", "stage", "host"}
MEGATRON = {"rank", "step", "optype", "start_ts", "duration", "stage", "dp_rank"}
MEGATRON_MORE = {"seq_id", "mc"}

# Who meets in a collective of Megatron: the ranks of a stage, or those of one pipeline.
OF_A_STAGE = ("grads-reduce-scatter", "params-all-gather", "grads-all-reduce")
OF_A_PIPELINE = ("embedding-grads-all-reduce",)
CALLS = {
    "forward-send": (SEND, 1),
    "forward-recv": (RECEIVE, 1),
    "backward-send": (SEND, -1),
    "backward-recv": (RECEIVE, -1),
}  # the side, and to which stage what is sent goes


def has_operations(path: str) -> bool:
    """Whether its columns are those of a table of operations."""
    names = set(header_of(path))
    return names >= PLAIN or names >= MEGATRON


def read_table(path: str) -> Operations:
    """The operations in a table. Raises BadTable, OSError, and ImportError where pyarrow is needed.

    What such a table cannot say is in `notes`. In memory are its columns.
    """
    names = set(header_of(path))
    if names >= MEGATRON:
        return _megatron(columns_of(path, MEGATRON | MEGATRON_MORE))
    if names >= PLAIN:
        return _plain(columns_of(path, PLAIN | PLAIN_MORE))
    missing = ", ".join(sorted(PLAIN - names))
    raise BadTable(f"{path}: no table of operations: no column {missing}")


def _plain(columns: dict[str, Column]) -> Operations:
    whole = {one: columns[one].whole(one) for one in PLAIN - {"name"}}
    for one in {"lane", "sequence"} & set(columns):
        whole[one] = columns[one].whole(one)
    whole["name"], names = columns["name"].places("name")
    if (whole["name"] < 0).any():
        raise BadTable("column 'name' has rows without a name")
    if "peer" in columns:
        whole["peer"] = columns["peer"].whole("peer", -1)
    if "stage" in columns:
        whole["stage"] = columns["stage"].whole("stage", -1)
    for one in {"group", "host"} & set(columns):
        whole[one], words = columns[one].places(one)
        if one == "host":
            host_names = words
    order = np.lexsort((whole["end_ns"], whole["begin_ns"], whole["rank"], whole["step"]))
    whole = {one: values[order] for one, values in whole.items()}
    rank, step = whole["rank"], whole["step"]
    side = _sides(names)[whole["name"]] if "peer" in whole else np.zeros(len(order), np.int64)
    meeting = np.full(len(order), -1, np.int64)
    if "group" in whole:
        group = whole["group"]
        _meet(meeting, (group >= 0) & (side == TOGETHER), whole, (step, group), (rank, group))
    if "peer" in whole:
        peer = whole["peer"]
        calls = (side != TOGETHER) & (peer >= 0)
        ends = (np.where(side == SEND, rank, peer), np.where(side == SEND, peer, rank))
        _meet(meeting, calls, whole, (step, *ends), (rank, *ends, side))
    lane = whole.get("lane", np.where(side == TOGETHER, 0, 1 + whole["name"]))
    stages = _of_ranks(rank, whole["stage"]) if "stage" in whole else {}
    hosts = _of_ranks(rank, whole["host"]) if "host" in whole else {}
    notes = [] if (meeting >= 0).any() else ["the table names no group and no peer"]
    return Operations(
        rank, lane, step, whole["name"], whole["begin_ns"], whole["end_ns"], meeting, side, names,
        {one: at for one, at in stages.items() if at >= 0},
        {one: host_names[at] for one, at in hosts.items() if at >= 0}, notes,
    )  # fmt: skip


def _sides(names: tuple[str, ...]) -> Ints:
    """By the name: "…send…" sends, "…recv…" and "…receive…" receive."""
    lower = [name.lower() for name in names]
    return np.array(
        [
            SEND if "send" in name else RECEIVE if "recv" in name or "receive" in name else TOGETHER
            for name in lower
        ]
    )


def _meet(
    meeting: Ints,
    rows: Ints,
    whole: dict[str, Ints],
    place: tuple[Ints, ...],
    own: tuple[Ints, ...],
) -> None:
    """Numbers the meetings of these rows: the same place and sequence; without a sequence the
    first of a rank in a step meets the first of the others."""
    if not rows.any():
        return
    if "sequence" in whole:
        turn = whole["sequence"][rows]
    else:
        number, _ = numbers_of(whole["step"][rows], *(one[rows] for one in own))
        turn = occurrence_of(number)
    base = int(meeting.max(initial=-1)) + 1
    meeting[rows] = base + numbers_of(*(one[rows] for one in place), turn)[0]


def _of_ranks(rank: Ints, values: Ints) -> dict[int, int]:
    ranks, first = np.unique(rank, return_index=True)
    return dict(zip(ranks.tolist(), values[first].tolist(), strict=True))


# --- Megatron's timers ---


def _megatron(columns: dict[str, Column]) -> Operations:
    begin_s = columns.pop("start_ts").numbers("start_ts").astype(np.float64)
    length_s = columns.pop("duration").numbers("duration").astype(np.float64)
    if not (np.isfinite(begin_s).all() and np.isfinite(length_s).all()):
        raise BadTable("columns 'start_ts' and 'duration' have rows without a number")
    begin = np.rint(begin_s * 1e9).astype(np.int64)
    end = np.rint((begin_s + length_s) * 1e9).astype(np.int64)
    del begin_s, length_s
    number, names = columns.pop("optype").places("optype")
    whole = {one: columns.pop(one).whole(one) for one in list(columns)}
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
                _meet(meeting, rows, {"step": whole["step"]}, place, (rank,))
    lanes = [1 + index if _is_communication(one) else 0 for index, one in enumerate(names)]
    between = int(np.gcd.reduce(rank))
    notes = [f"of each {between} ranks one is recorded"] if between > 1 else []
    return Operations(
        rank, np.array(lanes)[name], whole["step"], name, begin, end, meeting, side,
        names, _of_ranks(rank, stage), {}, notes,
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
    _meet(meeting, rows, {"step": whole["step"]}, place, (whole["rank"], sender, way, side))
