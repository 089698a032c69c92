"""The ranks of a run, from the log directories in which they leave journals and heartbeats.

A run may log to one directory or to several, and a directory may hold files of an earlier run. A
process that ended before the others began, and whose rank this run does not have, is listed apart.
"""

from __future__ import annotations

import contextlib
import operator
import os
import re
import time
from collections.abc import Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from .copied import now_in
from .files import CLOCK_DIFFERENCE_MAX_S, LABEL, Files, read_files
from .hosts import with_hosts
from .state import Found, Problem, Rank

READERS = 8  # threads: on a network file system the time goes into waiting
FILES_A_TURN = 64
HEARTBEAT_EVERY_S = 2.5  # at most, while a process lives
LOOKED_AT_S = 86_400.0  # what is older was left by a run that is over

_JOURNAL = re.compile(rf"({LABEL.pattern})\.\d+\.\d+(?:\.1)?\.journal(-ref)?")
_HEARTBEAT = re.compile(rf"({LABEL.pattern})\.heartbeat\.json")


def find_ranks(
    log_dirs: str | Sequence[str],
    *,
    only: Collection[int] | None = None,
    silent_after_s: float = 10.0,
    looks_again: bool = False,
) -> Found:
    """Reads the ranks in the directories; `only` restricts them. OSError when a directory cannot
    be listed.

    looks_again: waits up to 2.5 s whether heartbeats change that seem to be old, or from later on:
    the clocks of the hosts, of their file server and of this process may be hours apart.
    """
    files: dict[str, Files] = {}
    for log_dir in with_hosts([log_dirs] if isinstance(log_dirs, str) else log_dirs):
        _list_files(log_dir, only, files)

    results = _read_all(list(files.items()), silent_after_s)
    if looks_again:
        _look_again(files, results, silent_after_s)
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


def _look_again(files: dict[str, Files], results: list[_Read], silent_after_s: float) -> None:
    """Reads those once more whose heartbeat has changed."""
    doubtful: dict[int, tuple[str, Files, int]] = {}  # when the file was written, by the place
    for place, (label, own) in enumerate(files.items()):
        rank = results[place][0]
        if rank is not None and rank.source == "heartbeat" and rank.state != "closed":
            written_ns = _written_ns(own)
            now_s = max(now_in(os.path.dirname(path)) for path in own.heartbeats)
            age_s = now_s - written_ns / 1e9
            seems_old = rank.state == "silent" and age_s < LOOKED_AT_S
            if seems_old or age_s < -CLOCK_DIFFERENCE_MAX_S:
                doubtful[place] = label, own, written_ns
    deadline = time.monotonic() + HEARTBEAT_EVERY_S
    while doubtful and time.monotonic() < deadline:
        time.sleep(0.05)
        for place, (label, own, written_ns) in list(doubtful.items()):
            if _written_ns(own) != written_ns:
                results[place] = read_files(label, own, silent_after_s, has_moved=True)
                del doubtful[place]
    for place in doubtful:
        rank, problems = results[place]
        if rank is not None and rank.state == "running":
            results[place] = replace(rank, state="silent", beat_age_s=None), problems


def _written_ns(files: Files) -> int:
    """When a heartbeat was written last, by the file system's clock."""
    found = 0
    for path in files.heartbeats:
        with contextlib.suppress(OSError):  # it is being replaced
            found = max(found, os.stat(path).st_mtime_ns)
    return found


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
    signs = [(last_sign_s(rank), rank) for rank in ranks]
    for sign_s, rank in sorted(signs, key=operator.itemgetter(0), reverse=True):
        if labels and sign_s < began:
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
