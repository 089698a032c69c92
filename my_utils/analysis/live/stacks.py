"""Where the ranks of a run stand in their Python code."""

from __future__ import annotations

from typing import NotRequired, TypedDict

from ..process_stacks.record import Thread
from ..process_stacks.request import Stacks, request_stacks, wait_for_stacks
from ..process_stacks.text import stack_lines
from .poll import Snapshot
from .result import SnapshotData
from .view import visible

RANKS_MAX = 64  # those that are asked: suspects first


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
    alive = [rank.rank for rank in seen.found.ranks if rank.alive]
    first = sorted(seen.collectives.named) if seen.collectives else []
    first += [one.rank.rank for one in seen.suspects]
    first += [one.rank.rank for one in seen.waiting]
    order = [rank for rank in dict.fromkeys([*first, *alive]) if rank in set(alive)]
    ranks = sorted(order[:RANKS_MAX])
    result = Stacks()
    if not ranks:
        return result
    asked: list[tuple[str, str]] = []
    for log_dir in seen.log_dirs:
        try:
            asked.append((log_dir, request_stacks(log_dir, ranks=ranks)))
        except OSError as error:
            result.missing[log_dir] = f"no request can be written: {error.strerror}"
    for log_dir, id in asked:
        found = wait_for_stacks(log_dir, id, ranks)
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
