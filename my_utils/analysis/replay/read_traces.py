"""Traces of torch.profiler of all ranks: which rank each is of, and which operations meet."""

from __future__ import annotations

import itertools
import os
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import cast

import numpy as np

from ...core.reader_process import ReaderError, Readers, unpacked_bytes
from ...core.units import count_text
from .operations import SEND, TOGETHER, Ints, Operations, Words
from .table_files import number_meetings
from .torch_trace import COLLECTIVES, TraceRows, left_out_text, read_trace

POOL_ABOVE = 16 << 20  # bytes of JSON; fewer are read before other processes are up
POOL_MAX = 16  # processes, of 80 MB each with a small trace
IDLE_NOTE = "the device is idle"
IDLE_LEAST = 0.05  # of the steps, from which on a note says what the host did


def read_traces(paths: Sequence[str]) -> Operations:
    """The operations in traces, one file a rank and window of steps. ValueError where none has
    steps."""
    names, groups = Words(), Words()
    notes: list[str] = []
    unread: list[str] = []
    ranks: dict[int, dict[str, Ints]] = {}
    hosts: dict[int, str] = {}
    marked_ns: defaultdict[int, dict[int, tuple[int, int]]] = defaultdict(dict)
    idle: defaultdict[str, float] = defaultdict(float)
    shares: list[float] = []
    loads_here = False
    ungrouped = calls = world_size = 0
    for path, trace in zip(paths, _read_alike(paths), strict=True):
        if isinstance(trace, str):
            unread.append(trace)
            continue
        if trace.left_out:
            notes.append(f"{path}: {left_out_text(trace.left_out)}")
        rows = trace.rows
        rows["name"] = _renumbered(rows["name"], trace.names, names)
        rows["group"] = _renumbered(rows["group"], trace.groups, groups)
        rank = _assign_rank(trace.rank, rows["step"], ranks)
        if rank is None:
            notes.append(f"{path}: another trace of rank {trace.rank}, left out")
            continue
        shares.append(trace.idle_share)
        for name, share in trace.idle.items():
            idle[name] += share
        rows["rank"] = np.full(len(rows["step"]), rank)
        before = ranks.get(rank)
        ranks[rank] = rows if before is None else _joined([before, rows])
        marked_ns[rank] |= trace.marked_ns
        if trace.host_name:
            hosts[rank] = trace.host_name
        loads_here |= trace.loads_here
        world_size = max(world_size, trace.world_size)
        ungrouped += trace.ungrouped
        calls += int(((rows["side"] != TOGETHER) & (rows["peer"] < 0)).sum())
    if not ranks:
        raise ValueError("; ".join(unread[:3]) or "no traces")
    columns = _joined(ranks.values())
    notes = [*_while_idle(shares, idle), *(f"{one}, left out" for one in unread), *notes]
    notes += _missing_steps(ranks, columns)
    if ungrouped:
        notes.append(f"{ungrouped} collectives name no group: taken as of all ranks")
    if calls:
        notes.append(f"{calls} point-to-point calls name no other rank")
    order = np.lexsort((columns["begin"], columns["rank"], columns["step"]))
    columns = {key: value[order] for key, value in columns.items()}
    return Operations(
        columns["rank"], columns["lane"], columns["step"], columns["name"], columns["begin"],
        columns["end"], _meetings(columns), columns["side"], tuple(names), {}, hosts, notes,
        num_workers=0 if loads_here else None, world_size=world_size, marked_ns=dict(marked_ns),
        late_lanes=(COLLECTIVES,),
    )  # fmt: skip


def _read_alike(paths: Sequence[str]) -> list[TraceRows | str]:
    """In the order of the paths. What is left out of one as saying no more than the step is left
    out of all: on a rank that is slow there it may be nearly the whole step."""
    traces = _read_all(paths, None)
    frames = [one.frames for one in traces if isinstance(one, TraceRows)]
    of_all = frozenset.intersection(*frames) if frames else frozenset()
    others = [
        place for place, one in enumerate(traces)
        if isinstance(one, TraceRows) and one.frames != of_all
    ]  # fmt: skip
    again = _read_all([paths[place] for place in others], sorted(of_all))
    for place, trace in zip(others, again, strict=True):
        traces[place] = trace
    return traces


def _read_all(paths: Sequence[str], frames: list[str] | None) -> list[TraceRows | str]:
    """Large ones side by side, each in a process with limits."""
    count = min(len(paths), len(os.sched_getaffinity(0)), POOL_MAX)
    if not count or sum(map(unpacked_bytes, paths)) < POOL_ABOVE:
        return [read_trace(frames, path) for path in paths]

    def read(path: str) -> TraceRows | str:
        try:
            return cast("TraceRows | str", readers.read(path, frames))
        except ReaderError as error:
            return f"{path}: {error}"

    with ThreadPoolExecutor(count) as pool, Readers(read_trace, count, bounded=True) as readers:
        return list(pool.map(read, paths))


def _renumbered(numbers: Ints, words: Sequence[str], all_words: Words) -> Ints:
    """By the numbers that these words have in all traces; -1 stays."""
    known = np.array([*(all_words[word] for word in words), -1])
    renumbered: Ints = known[numbers]
    return renumbered


def _meetings(columns: dict[str, Ints]) -> Ints:
    """By group, or by sender and receiver; -1 for those that meet nobody in the traces."""
    rank, step, group, side, peer = (
        columns[key] for key in ("rank", "step", "group", "side", "peer")
    )
    meeting = np.full(len(rank), -1, np.int64)
    calls = (side != TOGETHER) & np.isin(peer, np.unique(rank))
    ends = (np.where(side == SEND, rank, peer), np.where(side == SEND, peer, rank))
    number_meetings(meeting, calls, columns, (step, *ends), (rank, *ends, side))
    number_meetings(meeting, group >= 0, columns, (step, group), (rank, group))
    return meeting


def _assign_rank(rank: int | None, step: Ints, ranks: Mapping[int, dict[str, Ints]]) -> int | None:
    """The rank that a trace of these steps is of: its own one, or, where it names none, the first
    that has other steps. None where its own one has some of them already."""

    def has_others(one: int) -> bool:
        return one not in ranks or not np.isin(step, ranks[one]["step"]).any()

    if rank is None:
        return next(one for one in itertools.count() if has_others(one))
    return rank if has_others(rank) else None


def _joined(parts: Iterable[dict[str, Ints]]) -> dict[str, Ints]:
    parts = list(parts)
    return {key: np.concatenate([rows[key] for rows in parts]) for key in parts[0]}


def _while_idle(shares: list[float], names: Mapping[str, float]) -> list[str]:
    """shares: of the steps of each rank, in which its device had nothing to do. names: the same in
    each name of the host, summed over the ranks."""
    if not shares or (share := sum(shares) / len(shares)) < IDLE_LEAST:
        return []
    most = [
        f"{name} {100 * one / len(shares):.0f} %"
        for name, one in sorted(names.items(), key=lambda each: -each[1])[:3]
        if one / len(shares) >= 0.1 * share
    ]
    host = f", while the host is in {', '.join(most)}" if most else ""
    return [f"{IDLE_NOTE} {100 * share:.0f} % of the time{host}"]


def _missing_steps(ranks: dict[int, dict[str, Ints]], columns: dict[str, Ints]) -> list[str]:
    """Keeps the steps that all ranks have."""
    count = Counter(step for rows in ranks.values() for step in np.unique(rows["step"]).tolist())
    common = [step for step, number in count.items() if number == len(ranks)]
    if len(common) == len(count):
        return []
    kept = np.isin(columns["step"], common)
    for key in columns:
        columns[key] = columns[key][kept]
    missing = len(count) - len(common)
    are = "is" if missing == 1 else "are"
    return [f"{count_text(missing, 'step')} {are} not in the traces of all ranks, left out"]
