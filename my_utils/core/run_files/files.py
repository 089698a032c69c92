"""Reads the files that a process keeps in its log directory: its journal and its heartbeat.

The journal of a process on this machine shows to the microsecond what it does, also after it was
killed. A process on another machine is read from its heartbeat file, which is at most two seconds
old while the process lives. Files that cannot be read are listed with the reason, and the others
are read.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from operator import itemgetter
from typing import TYPE_CHECKING, Any, TypeVar

from ... import _core
from ..bounded_read import describe
from ..ranks import boot_id, host_name, process_began_s
from .copied import now_in
from .hosts import last_news
from .pointers import follow_pointer
from .state import WORLD_SIZE_MAX, FinishedStage, OpenStage, Problem, Rank, Thread

if TYPE_CHECKING:
    from .heartbeat import Heartbeat, HeartbeatThread

_T = TypeVar("_T")

CLOCK_DIFFERENCE_MAX_S = 3600.0

# Two of its beats: a process that lives says so every 0.5 s in its journal, and every 2 s in its
# heartbeat file.
JOURNAL_SILENT_S = 1.0
HEARTBEAT_SILENT_S = 4.0

FLIGHTS_FOLDER = "flight_recorder"
"""Inside a log directory: dumps of torch's flight recorder, one a rank."""

REPLICAS_FOLDER = "replicas"
"""Inside a log directory: the sums of tensors that ranks must have equal."""

LABEL = re.compile(r"rank_(-?\d+)(?:\.w(\d+))?")


@dataclass
class Files:
    """The files of one process, or of several that had the label one after another."""

    journals: list[str] = field(default_factory=list)  # paths
    pointers: list[str] = field(default_factory=list)
    heartbeats: list[str] = field(default_factory=list)


@dataclass
class Beat:
    """A heartbeat file, and when the file was written by the file server's clock, in s."""

    path: str
    written_s: float
    content: Heartbeat


def read_files(
    label: str, files: Files, silent_after_s: float, *, has_moved: bool = False
) -> tuple[Rank | None, list[Problem]]:
    """The newest process in the files, and the files that could not be read.

    has_moved: the heartbeat was seen to change just now, so that no clock is asked for its age.
    """
    problems: list[Problem] = []
    journals = [journal for path in files.journals if (journal := _journal(path, problems))]
    for pointer in files.pointers:
        path, problem = follow_pointer(pointer)
        if problem:
            problems.append(Problem(pointer, problem))
        if path is not None and (journal := _journal(path, problems)):
            journals.append(journal)
    beats = [beat for path in files.heartbeats if (beat := _heartbeat(path, problems))]
    journal = max(journals, key=itemgetter("held", "attempt", "process_start"), default=None)
    beat = max(beats, key=lambda beat: (beat.content.attempt, beat.content.time), default=None)
    try:
        return _newest(label, journal, beat, silent_after_s, has_moved), problems
    except (TypeError, ValueError, OverflowError) as error:  # a time beyond all bounds
        file = beat.path if beat else label
        problems.append(Problem(file, f"not a heartbeat of my_utils: {describe(error)}"))
        return None, problems


def _newest(
    label: str, journal: dict[str, Any] | None, beat: Beat | None, silent_after_s: float,
    has_moved: bool,
) -> Rank | None:  # fmt: skip
    if journal is not None and (beat is None or _is_newer(journal, beat.content)):
        rank = _from_journal(label, journal, silent_after_s)
        if beat and (beat.content.attempt, beat.content.pid) == (rank.attempt, rank.pid):
            rank.dropped = max(rank.dropped, beat.content.dropped)  # it has rows, too
        return rank
    return _from_heartbeat(label, beat, silent_after_s, has_moved) if beat else None


def _is_newer(journal: dict[str, Any], heartbeat: Heartbeat) -> bool:
    """Of the two, which knows more. A journal that is held says what is now."""
    if journal["held"]:
        return True
    if journal["attempt"] != heartbeat.attempt:
        return bool(journal["attempt"] > heartbeat.attempt)
    if _is_of_this_boot(journal):
        return True
    return bool(journal["heartbeat_ns"] >= heartbeat.time * 1e9)


def _is_of_this_boot(journal: dict[str, Any]) -> bool:
    return bool(journal["boot_id"]) and journal["boot_id"] == boot_id()


def _is_of_an_earlier_boot(journal: dict[str, Any]) -> bool:
    here = journal["host"] == host_name()
    return here and bool(journal["boot_id"]) and not _is_of_this_boot(journal)


def _journal(path: str, problems: list[Problem]) -> dict[str, Any] | None:
    def read() -> dict[str, Any]:
        journal: dict[str, Any] = dict(_core.read_journal(path))
        if not 0 <= journal["world_size"] <= WORLD_SIZE_MAX:
            raise ValueError(f"a damaged journal: its world size is {journal['world_size']}")
        if not journal["held"] and _is_of_an_earlier_boot(journal):
            problems.append(Problem(path, "from before this machine was started; parts of it may "
                                          "be older than others"))  # fmt: skip
        return journal

    return _attempt(path, read, problems)


def _attempt(path: str, read: Callable[[], _T], problems: list[Problem]) -> _T | None:
    """None for a file that vanished, as they do when a process ends normally, and for one that
    cannot be read, which is a problem."""
    try:
        return read()
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError) as error:
        problems.append(Problem(path, describe(error)))
        return None


def _heartbeat(path: str, problems: list[Problem]) -> Beat | None:
    def read() -> Beat:
        from .heartbeat import read_heartbeat_file

        content, written_s = read_heartbeat_file(path)
        return Beat(path, written_s, content)

    return _attempt(path, read, problems)


def split_label(label: str) -> tuple[int, int]:
    """The rank and the worker of `rank_3.w1`, 0 for the rank itself."""
    match = LABEL.fullmatch(label)
    if match is None:
        raise ValueError(f"no rank in {label!r}")
    return int(match[1]), int(match[2] or 0)


def _age(then_ns: int, now_ns: int) -> float:
    return max(0, now_ns - then_ns) / 1e9


def _from_journal(label: str, journal: dict[str, Any], silent_after_s: float) -> Rank:
    is_of_this_boot = _is_of_this_boot(journal)
    now, age = _now_and_age(journal, is_of_this_boot)
    if not journal["held"] and is_of_this_boot:
        state = "closed" if journal["closed"] else "dead"
    else:
        unknown = age is None and not journal["held"]
        late = (age or 0.0) > max(silent_after_s, JOURNAL_SILENT_S)
        state = "silent" if unknown or late else "running"
    rank, worker = split_label(label)
    seen_ns = now + journal["time_offset_ns"]
    return Rank(
        label=label,
        rank=rank,
        worker=worker,
        world_size=journal["world_size"],
        host=journal["host"],
        pid=journal["pid"],
        attempt=journal["attempt"],
        state=state,
        source="journal",
        beat_age_s=age,
        began_s=process_began_s(journal["process_start"]) if is_of_this_boot else None,
        time_offset_s=journal["time_offset_ns"] / 1e9,
        clock_ahead_s=0.0 if is_of_this_boot else None,
        seen_ns=seen_ns,
        dropped=journal["dropped"],
        threads=[_thread_of_journal(thread, seen_ns) for thread in journal["lanes"]],
    )


def _now_and_age(journal: dict[str, Any], is_of_this_boot: bool) -> tuple[int, float | None]:
    """Unix time by the process's clock, and since when it is not heard of. Processes of one boot
    have the monotonic clock in common, which nobody sets."""
    beat, beat_mono = journal["heartbeat_ns"], journal["beat_mono_ns"]
    if is_of_this_boot and beat_mono and journal["real_offset_ns"]:
        mono = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
        return mono + journal["real_offset_ns"], _age(beat_mono, mono) if beat else None
    now = time.time_ns()
    return now, _age(beat, now) if beat else None


def _thread_of_journal(found: dict[str, Any], now_ns: int) -> Thread:
    stages = [_open_stage(s["name"], s["step"], s["start_ns"], now_ns) for s in found["open"]]
    last = [
        FinishedStage(s["name"], s["step"], s["start_ns"], (s["end_ns"] - s["start_ns"]) / 1e6)
        for s in found["last"]
    ]
    ended_ns = found["last"][0]["end_ns"] if last else None
    tid, name, tag, step = (found[key] for key in ("tid", "thread_name", "tag", "step"))
    return Thread(tid, name, tag, step, stages, last, ended_ns)


def _open_stage(name: str, step: int, since_ns: int, now_ns: int) -> OpenStage:
    return OpenStage(name, step, since_ns, _age(since_ns, now_ns))


def _from_heartbeat(label: str, beat: Beat, silent_after_s: float, has_moved: bool) -> Rank:
    found = beat.content
    folder = os.path.dirname(beat.path)
    now_s, is_over = last_news(folder, now_in(folder))
    age, ahead = _age_and_clock(found.time, beat.written_s, now_s)
    if has_moved:
        age, ahead = 0.0, found.time - beat.written_s
    if found.closed:
        state = "closed"
    else:
        is_late = age > max(silent_after_s, HEARTBEAT_SILENT_S)
        state = "silent" if is_late or is_over else "running"
    seen_ns = round((found.time + age + found.time_offset) * 1e9)
    rank, worker = split_label(label)
    return Rank(
        label=label,
        rank=rank,
        worker=worker,
        world_size=found.world_size,
        host=found.host,
        pid=found.pid,
        attempt=found.attempt,
        state=state,
        source="heartbeat",
        beat_age_s=age,
        began_s=found.began or None,
        time_offset_s=found.time_offset,
        clock_ahead_s=ahead,
        seen_ns=seen_ns,
        dropped=found.dropped,
        threads=[_thread_of_heartbeat(thread, seen_ns) for thread in found.threads],
    )


def _age_and_clock(beat_s: float, written_s: float, now_s: float) -> tuple[float, float | None]:
    """Since when a heartbeat is there, and how far its host's clock is ahead. The file's own time
    is by the file server's clock, one for all hosts; the beat's by the clock of its host. Where
    the beat is far older than the file, this was copied, or that clock is wrong, which a second
    look shows; until then the beat's own time is left.

    >>> _age_and_clock(1040.0, 1000.0, 1003.0)
    (3.0, 40.0)
    >>> _age_and_clock(1040.0, 90_000.0, 90_001.0)
    (88961.0, None)
    """
    ahead = beat_s - written_s
    if ahead < -CLOCK_DIFFERENCE_MAX_S:
        return max(0.0, now_s - beat_s), None
    return max(0.0, now_s - written_s), ahead


def _thread_of_heartbeat(found: HeartbeatThread, now_ns: int) -> Thread:
    stages = [_open_stage(s.name, s.step, round(s.since * 1e9), now_ns) for s in found.open]
    ended_ns = None if found.ended is None else round(found.ended * 1e9)
    return Thread(found.tid, found.thread, found.tag, found.step, stages, ended_ns=ended_ns)
