"""Tables of operations, a row each, as Parquet or CSV.

Two sets of columns are read. The plain one: rank, step, name, begin_ns, end_ns, and what there is
of lane, group, sequence, peer, stage, host, under the names of NAMES. That of Megatron's timers, as
published with arXiv 2505.05713: rank, step, optype, start_ts, duration (both in seconds), stage and
dp_rank.
"""

from __future__ import annotations

import re

import numpy as np

from ...core.run_files.state import WORLD_SIZE_MAX
from .operations import (
    DAY_NS,
    RECEIVE,
    SEND,
    TOGETHER,
    Ints,
    Operations,
    are_in_order,
    in_half,
    number_rows,
)
from .table_files import (
    WHOLE_MAX,
    BadTable,
    Column,
    number_meetings,
    of_ranks,
    read_columns,
    read_header,
)

NAMES = {
    "rank": ("rank",),
    "step": ("step",),
    "name": ("name", "op", "optype"),
    "lane": ("lane", "thread", "stream"),
    "group": ("group", "meeting"),
    "sequence": ("sequence", "seq", "number"),
    "peer": ("peer",),
    "stage": ("stage", "role", "pp_rank"),
    "host": ("host", "hostname", "node"),
}
TIMES = ("begin", "start", "end", "duration", "dur")
UNITS = {"": 1, "_ns": 1, "_us": 1_000, "_ms": 1_000_000, "_s": 1_000_000_000}

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


def has_operations(path: str) -> bool:
    """Whether its columns are those of a table of operations."""
    names = read_header(path)
    return set(names) >= MEGATRON or not _missing(names)


def read_table(path: str) -> Operations:
    """The operations in a table. Raises BadTable, OSError, and ImportError where pyarrow is needed.

    What such a table cannot say is in `notes`. In memory are its columns.
    """
    names = read_header(path)
    if set(names) >= MEGATRON:
        return _without_damaged(_megatron_operations(read_columns(path, MEGATRON)))
    missing = _missing(names)
    if missing:
        raise BadTable(f"{path}: no table of operations: no column {', '.join(missing)}")
    known = _known(names)
    columns = read_columns(path, set(known.values()))
    return _without_damaged(_plain({one: columns[name] for one, name in known.items()}, known))


def _without_damaged(operations: Operations) -> Operations:
    """Without the rows that end before they begin, and those a day away from the middle of their
    step: a time that was never set is 0."""
    begin, end = operations.begin_ns, operations.end_ns
    kept = begin <= end
    if len(begin) and max(np.ptp(begin), np.ptp(end)) >= DAY_NS:
        number, count = number_rows(operations.step)
        order = np.lexsort((begin, number))
        firsts = np.searchsorted(number[order], np.arange(count + 1))
        middle = begin[order][(firsts[:-1] + firsts[1:]) // 2][number]
        kept &= (np.abs(begin - middle) < DAY_NS) & (np.abs(end - middle) < DAY_NS)
    if kept.all():
        return operations
    damaged = f"{int((~kept).sum()):,}"
    found = operations.kept(kept)
    found.notes = [
        f"rows that end before they begin, or are a day away from their step, left out: {damaged}",
        *operations.notes,
    ]
    return found


def _known(names: tuple[str, ...]) -> dict[str, str]:
    """What a column means, and its name."""
    found: dict[str, str] = {}
    for one, aliases in NAMES.items():
        found.update((one, name) for name in reversed(aliases) if name in names)
    for one in TIMES:
        found.update((one, f"{one}{unit}") for unit in UNITS if f"{one}{unit}" in names)
    return found


def _missing(names: tuple[str, ...]) -> list[str]:
    known = _known(names)
    missing = [one for one in ("rank", "step", "name") if one not in known]
    missing += ["begin_ns"] if not known.keys() & {"begin", "start"} else []
    return missing + (["end_ns"] if not known.keys() & {"end", "duration", "dur"} else [])


def _times(columns: dict[str, Column], known: dict[str, str]) -> tuple[Ints, Ints]:
    """Begins and ends in ns. Fractions of other units are kept."""

    def in_ns(one: str) -> Ints:
        unit = UNITS[known[one].removeprefix(one)]
        column = columns.pop(one)
        if unit == 1:
            return column.whole(known[one]).astype(np.int64)
        values = column.numbers(known[one]).astype(np.float64)
        if not (np.abs(values) < WHOLE_MAX / unit).all():
            raise BadTable(f"column {known[one]!r} has rows without a number of that unit")
        return np.rint(values * unit).astype(np.int64)

    begin = in_ns("begin" if "begin" in columns else "start")
    if "end" in columns:
        return begin, in_ns("end")
    return begin, begin + in_ns("duration" if "duration" in columns else "dur")


def _plain(columns: dict[str, Column], known: dict[str, str]) -> Operations:
    """Takes the columns out of the dictionary one by one, each in half the memory if it can be."""
    begin, end = _times(columns, known)
    whole = {"step": in_half(columns.pop("step").whole("step"))}
    whole["rank"] = in_half(columns.pop("rank").whole("rank", below=WORLD_SIZE_MAX))
    for one in {"lane", "sequence"} & set(columns):
        column = columns.pop(one)
        is_text = column.words is not None
        whole[one] = in_half(
            column.places(known[one])[0] if is_text else column.whole(known[one], -1)
        )
    whole["name"], names = columns.pop("name").places("name")
    if (whole["name"] < 0).any():
        raise BadTable("column 'name' has rows without a name")
    if "peer" in columns:
        whole["peer"] = in_half(columns.pop("peer").whole("peer", -1, WORLD_SIZE_MAX))
    words: dict[str, tuple[str, ...]] = {}
    for one in {"group", "stage", "host"} & set(columns):
        values, words[one] = columns.pop(one).places(known[one])
        whole[one] = in_half(values)
    stages = of_ranks(whole["rank"], whole.pop("stage")) if "stage" in whole else {}
    hosts = of_ranks(whole["rank"], whole.pop("host")) if "host" in whole else {}
    if not are_in_order(whole["step"], whole["rank"], begin, end):
        order = np.lexsort((end, begin, whole["rank"], whole["step"]))
        begin, end = begin[order], end[order]
        for one in whole:
            whole[one] = whole[one][order]
        del order
    rank, step = whole["rank"], whole["step"]
    side = _sides(names)[whole["name"]]
    meeting = np.full(len(rank), -1, np.int32)
    calls = (side != TOGETHER) & (whole["peer"] >= 0) if "peer" in whole else np.zeros(0, np.bool_)
    if calls.any():
        peer = whole["peer"]
        ends = (np.where(side == SEND, rank, peer), np.where(side == SEND, peer, rank))
        number_meetings(meeting, calls, whole, (step, *ends), (rank, *ends, side))
    if "group" in whole:
        group = whole["group"]
        rows = (group >= 0) & (meeting < 0)
        number_meetings(meeting, rows, whole, (step, group), (rank, group))
    lane = whole["lane"] if "lane" in whole else np.where(side == TOGETHER, 0, 1 + whole["name"])
    notes = [] if (meeting >= 0).any() else ["the table names no group and no peer"]
    return Operations(
        rank, lane, step, whole["name"], begin, end, meeting, side, names,
        {one: _number(words["stage"][at], at) for one, at in stages.items() if at >= 0},
        {one: words["host"][at] for one, at in hosts.items() if at >= 0}, notes,
    )  # fmt: skip


def _number(word: str, place: int) -> int:
    return int(word) if word.isdecimal() else place


def _sides(names: tuple[str, ...]) -> Ints:
    """By a word of the name: send, isend, recv, irecv, receive."""
    found = []
    for name in names:
        words = set(re.split(r"[^a-z0-9]+", name.lower()))
        sends, receives = words & {"send", "isend"}, words & {"recv", "irecv", "receive"}
        found.append(TOGETHER if bool(sends) == bool(receives) else SEND if sends else RECEIVE)
    return np.array(found, np.int8)


# --- tables of Megatron's timers ---


def _megatron_operations(columns: dict[str, Column]) -> Operations:
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
    meets = {*CALLS, *OF_A_STAGE, *OF_A_PIPELINE}
    lanes = [1 + index if one in meets else 0 for index, one in enumerate(names)]
    between = int(np.gcd.reduce(rank))
    notes = [f"of each {between} ranks one is recorded"] if between > 1 else []
    return Operations(
        rank, np.array(lanes)[name], whole["step"], name, begin, end, meeting, side,
        names, of_ranks(rank, stage), {}, notes,
    )  # fmt: skip


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
