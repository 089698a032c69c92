"""Where the ranks of a run are in their Python code."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import NotRequired, TypedDict

from ..process_stacks.record import Thread
from ..process_stacks.request import WAIT_S, Stacks, request_stacks, wait_for_stacks
from ..process_stacks.text import main_text, stack_lines
from .poll import Snapshot
from .result import SnapshotData
from .view import visible

RANKS_MAX = 64  # those that are asked: suspects first
NAMED_MAX = 8
WAIT_NAMED_S = 2.0  # the ranks look for requests twice a second


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
    """

    stacks: NotRequired[StacksData]


def stacks_of(seen: Snapshot) -> Stacks:
    """One dump of the ranks, each found in the directory it logs to; suspects and those that wait
    for them come first where there are many."""
    alive = dict.fromkeys(rank.rank for rank in seen.found.ranks if rank.alive)
    first = [*_named(seen), *(one.rank.rank for one in seen.waiting)]
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
