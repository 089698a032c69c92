"""The ranks of a run, from the log directories in which they leave journals and heartbeats.

A run may log to one directory or to several, and a directory may hold files of an earlier run. A
process that ended before the others began, and whose rank this run does not have, is listed apart.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Sequence
from concurrent.futures import ThreadPoolExecutor

from .files import LABEL, Files, read_files
from .state import Found, Problem, Rank

READERS = 8  # threads: on a network file system the time goes into waiting
FILES_A_TURN = 64

_JOURNAL = re.compile(rf"({LABEL.pattern})\.\d+\.\d+(?:\.1)?\.journal(-ref)?")
_HEARTBEAT = re.compile(rf"({LABEL.pattern})\.heartbeat\.json")


def find_ranks(
    log_dirs: str | Sequence[str],
    *,
    only: Collection[int] | None = None,
    silent_after_s: float = 10.0,
) -> Found:
    """Reads the ranks in the directories; `only` restricts them. OSError when a directory cannot
    be listed."""
    files: dict[str, Files] = {}
    for log_dir in [log_dirs] if isinstance(log_dirs, str) else log_dirs:
        _list_files(log_dir, only, files)

    results = _read_all(list(files.items()), silent_after_s)
    ranks = [rank for rank, _ in results if rank is not None]
    ranks.sort(key=lambda rank: (rank.rank, rank.worker))
    found = Found(ranks, [problem for _, problems in results for problem in problems])
    return _set_earlier_apart(found)


_Read = tuple[Rank | None, list[Problem]]


def _read_all(items: Sequence[tuple[str, Files]], silent_after_s: float) -> list[_Read]:
    def read(begin: int) -> list[_Read]:
        part = items[begin : begin + FILES_A_TURN]
        return [read_files(label, files, silent_after_s) for label, files in part]

    turns = range(0, len(items), FILES_A_TURN)
    if len(turns) <= READERS:
        return [result for begin in turns for result in read(begin)]
    with ThreadPoolExecutor(READERS) as pool:
        return [result for results in pool.map(read, turns) for result in results]


def _list_files(log_dir: str, only: Collection[int] | None, found: dict[str, Files]) -> None:
    with os.scandir(log_dir) as entries:
        for entry in entries:
            match = _JOURNAL.fullmatch(entry.name) or _HEARTBEAT.fullmatch(entry.name)
            if match is None or (only is not None and int(match[2]) not in only):
                continue
            files = found.setdefault(match[1], Files())
            if entry.name.endswith(".heartbeat.json"):
                files.heartbeats.append(entry.path)
            elif entry.name.endswith("-ref"):
                files.pointers.append(entry.path)
            else:
                files.journals.append(entry.path)


def _set_earlier_apart(found: Found) -> Found:
    """Of the processes that ended before this run began, those that the run has no place for, and
    while it continues those that ended normally. Others may have died before their peers came
    up: they stay."""
    labels = _overlapping(found.ranks)
    current = [rank for rank in found.ranks if rank.label in labels]
    size = max((rank.world_size for rank in current), default=0)
    goes_on = any(rank.state != "closed" for rank in current)
    ranks: list[Rank] = []
    earlier: list[Rank] = []
    for rank in found.ranks:
        rank.left_before = rank.label not in labels
        has_no_place = rank.worker > 0 or rank.rank >= size > 0
        is_earlier = has_no_place or (goes_on and rank.state == "closed")
        (earlier if rank.left_before and is_earlier else ranks).append(rank)
    return Found(ranks, found.problems, earlier)


def _overlapping(ranks: Sequence[Rank]) -> set[str]:
    """The labels of the run that was there last: processes whose lives overlap, directly or over
    others. A process whose start is not known has always been there."""
    labels: set[str] = set()
    began = float("inf")
    for rank in sorted(ranks, key=last_sign_s, reverse=True):
        if labels and last_sign_s(rank) < began:
            break
        labels.add(rank.label)
        began = min(began, float("-inf") if rank.began_s is None else rank.began_s)
    return labels


def last_sign_s(rank: Rank) -> float:
    """When the process was there for certain; Unix time by its clock."""
    if rank.state == "running":
        return float("inf")
    signs = [rank.began_s or 0.0, (rank.moved_ns or 0) / 1e9 - rank.time_offset_s]
    if rank.beat_age_s is not None:
        signs.append(rank.seen_ns / 1e9 - rank.time_offset_s - rank.beat_age_s)
    return max(signs)
