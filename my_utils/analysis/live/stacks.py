"""Where the ranks of a run are in their Python code."""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Iterator, Sequence
from typing import NotRequired, TypedDict

from ...core.ranges import as_ranges, ranges_text
from ...core.run_files.state import Rank
from ...tensors.replicas.result import ReplicasData
from ..process_stacks.record import Frame, StackRecord, Thread
from ..process_stacks.request import WAIT_S, Stacks, request_stacks, wait_for_stacks
from .flight_files import RECORDER
from .poll import Snapshot
from .result import SnapshotData
from .view import visible

RANKS_MAX = 64  # those that are asked: suspects first
NAMED_MAX = 8
WAIT_NAMED_S = 2.0  # the ranks look for requests twice a second
FRAMES_SHOWN = 16
# The file whose functions are torch's collectives; those of another name prepare them.
_COLLECTIVES = "distributed_c10d.py"
_NOT_COLLECTIVES = ("_", "wrapper", "Work")
_LIBRARIES = (
    *(f"{os.sep}{name}" for name in ("torch/", "site-packages/", "lib/python")),
    RECORDER,
)
# The thread of `my_utils run` that watches for a standstill.
_OURS = f"{RECORDER}standstill.py"


class StacksOfRankData(TypedDict):
    """The Python stacks of a process, by thread."""

    label: str
    rank: int
    host: str
    pid: int
    threads: list[Thread]


class StacksData(TypedDict):
    """The Python stacks of some processes.

    missing: why there are no stacks, by the label of a rank or a directory.
    """

    records: list[StacksOfRankData]
    missing: dict[str, str]


class LiveData(SnapshotData):
    """A snapshot of a run.

    stacks: only with --stacks.
    replicas: only if they are watched.
    """

    stacks: NotRequired[StacksData]
    replicas: NotRequired[ReplicasData]


def dump_stacks(seen: Snapshot, ranks: Collection[int] | None = None) -> Stacks:
    """One dump of the ranks, each found in the directory it logs to; suspects and those that wait
    for them come first where there are many. ranks: only of these and of the suspects."""
    alive = dict.fromkeys(rank.rank for rank in seen.found.ranks if rank.alive)
    first = [*_named(seen), *(one.rank.rank for one in seen.waiting)]
    if ranks is not None:
        wanted = {*ranks, *_named(seen)}
        alive = {rank: None for rank in alive if rank in wanted}
    order = [rank for rank in dict.fromkeys([*first, *alive]) if rank in alive]
    return _ask(seen.log_dirs, sorted(order[:RANKS_MAX]), WAIT_S)


def stacks_of_named(seen: Snapshot) -> Stacks:
    """Those of the first ranks that hold up the others, as far as they answer at once."""
    running = {rank.rank for rank in seen.found.ranks if rank.state == "running"}
    named = [rank for rank in dict.fromkeys(_named(seen)) if rank in running]
    return _ask(seen.log_dirs, sorted(named[:NAMED_MAX]), WAIT_NAMED_S)


def _named(seen: Snapshot) -> list[int]:
    named = sorted(seen.collectives.named) if seen.collectives else []
    return [*named, *(one.rank.rank for one in seen.suspects)]


def places_by_rank(stacks: Stacks) -> dict[int, str]:
    """Where the ranks are in their Python code, in a few words."""
    places = {record.rank: main_text(record) for record in stacks.records}
    return {rank: text for rank, text in places.items() if text}


def _ask(log_dirs: Sequence[str], ranks: Sequence[int], timeout_s: float) -> Stacks:
    """timeout_s: for all directories together."""
    result = Stacks()
    if not ranks:
        return result
    asked: list[tuple[str, str]] = []
    for log_dir in log_dirs:
        try:
            asked.append((log_dir, request_stacks(log_dir, ranks=ranks)))
        except OSError as error:
            result.missing[log_dir] = f"no request can be written: {error.strerror}"
    end_s = time.monotonic() + timeout_s
    for log_dir, id in asked:
        left_s = max(0.0, end_s - time.monotonic())
        found = wait_for_stacks(log_dir, id, ranks, left_s)
        result.records += found.records
        result.missing.update(found.missing)
    return result


def stack_view_lines(stacks: Stacks, seen: Snapshot) -> list[str]:
    """One string a line."""
    if not stacks.records and not stacks.missing:
        return ["stacks: no rank runs"]
    return ["stacks:", *(visible(line) for line in stack_lines(stacks, seen.found.ranks))]


def stacks_as_data(stacks: Stacks) -> StacksData:
    """Plain data that goes into JSON."""
    import msgspec

    records: list[StacksOfRankData] = [
        {
            "label": record.label,
            "rank": record.rank,
            "host": record.host,
            "pid": record.pid,
            "threads": msgspec.to_builtins(record.threads()),
        }
        for record in stacks.records
    ]
    return {"records": records, "missing": stacks.missing}


def stack_lines(stacks: Stacks, ranks: Sequence[Rank] = ()) -> Iterator[str]:
    """ranks: whose open stages are known. Ranks whose first thread is at the same place share their
    lines, which show the other threads of the first of them."""
    by_label = {rank.label: rank for rank in ranks}
    groups: dict[object, list[StackRecord]] = {}
    for record in stacks.records:
        main = _main(record)
        key = (main.frames if main else (), _stages(by_label.get(record.label)))
        groups.setdefault(key, []).append(record)
    for members in sorted(groups.values(), key=len, reverse=True):
        yield from _group(members, by_label.get(members[0].label))
    for label, reason in sorted(stacks.missing.items()):
        yield f"no stacks of {label}: {reason}"


def _main(record: StackRecord) -> Thread | None:
    threads = record.threads()
    return threads[0] if threads else None


def _stages(rank: Rank | None) -> str:
    return " > ".join(name or "(name unknown)" for name in rank.stack) if rank else ""


def _group(members: Sequence[StackRecord], rank: Rank | None) -> Iterator[str]:
    first = members[0]
    threads = first.threads()
    stages = _stages(rank)
    step = "" if rank is None or rank.step is None else f", step {rank.step}"
    where = f" in {stages}{step}" if stages else ""
    doing = _doing(threads[0]) if threads else "runs no Python"
    yield f"{_name(members)}: {doing}{where}"
    for thread in threads:
        if not any(frame.file.endswith(_OURS) for frame in thread.frames):
            yield from _thread(thread, first.pid)


def _name(members: Sequence[StackRecord]) -> str:
    if len(members) == 1:
        return members[0].label.replace("_", " ", 1)
    ranks = sorted({record.rank for record in members})
    return f"ranks {ranges_text(as_ranges(ranks), 12)}" if len(ranks) > 1 else f"rank {ranks[0]}"


def _doing(thread: Thread) -> str:
    for place, frame in enumerate(thread.frames):
        if os.path.basename(frame.file) == _COLLECTIVES and not frame.function.startswith(
            _NOT_COLLECTIVES
        ):
            caller = _caller(thread.frames[place + 1 :])
            return f"waiting in {frame.function}{caller}"
    return _place(thread.frames[0]) if thread.frames else "its frames could not be read"


def main_text(record: StackRecord) -> str:
    """Where the first thread is, in a few words: its innermost frame, and the user's line that led
    there. "" where it runs no Python."""
    main = _main(record)
    if main is None or not main.frames:
        return ""
    text = _doing(main)
    if not text.startswith("`") or not _is_library(main.frames[0]):
        return text
    return text + _caller(main.frames[1:])


def _caller(frames: Sequence[Frame]) -> str:
    """The user's line: the first outside of libraries."""
    for frame in frames:
        if not _is_library(frame):
            return f", called by {_place(frame)}"
    return ""


def _is_library(frame: Frame) -> bool:
    """Whether it is torch's, another package's or Python's own."""
    return frame.file.startswith("<frozen ") or any(part in frame.file for part in _LIBRARIES)


def _place(frame: Frame) -> str:
    return f"`{frame.function}` {os.path.basename(frame.file)}:{frame.line}"


def _thread(thread: Thread, pid: int) -> Iterator[str]:
    name = "main thread" if thread.tid == pid else f"thread {thread.tid} {thread.name}".rstrip()
    notes = ["torn: it called or returned while it was read"] if thread.torn else []
    yield f"  {name}{': ' if notes else ''}{'; '.join(notes)}"
    for frame in thread.frames[:FRAMES_SHOWN]:
        yield f"    {frame.function}  {frame.file}:{frame.line}"
    more = len(thread.frames) - FRAMES_SHOWN
    if more > 0 or thread.cut:
        yield f"    and {more} more{' and others' if thread.cut else ''}"
