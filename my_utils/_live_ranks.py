"""What the ranks of a run do, from their journals and heartbeat files.

The journal of a process on this machine says it to the microsecond, also after the process was
killed. For a process on another machine there is its heartbeat file, at most two seconds old while
the process lives. Files that cannot be read are named with the reason, and the rest goes on.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from typing import Any

from . import _core
from ._ranks import boot_id

HEARTBEAT_VERSION = 1
HEARTBEAT_BYTES_MAX = 1 << 20

_LABEL = re.compile(r"rank_(-?\d+)(?:\.w(\d+))?")
_JOURNAL = re.compile(rf"({_LABEL.pattern})\.\d+\.\d+\.journal(-ref)?")
_HEARTBEAT = re.compile(rf"({_LABEL.pattern})\.heartbeat\.json")


@dataclass(frozen=True)
class OpenStage:
    """A stage that runs, or ran when its process ended."""

    name: str
    step: int
    since_ns: int  # Unix time
    open_s: float


@dataclass(frozen=True)
class FinishedStage:
    name: str
    step: int
    start_ns: int  # Unix time
    duration_ms: float


@dataclass
class Thread:
    """The stages of one timer on one thread."""

    tid: int
    name: str
    tag: str
    step: int
    open: list[OpenStage] = field(default_factory=list)  # outermost first
    last: list[FinishedStage] = field(default_factory=list)  # newest first


@dataclass
class Rank:
    """One process of the run."""

    label: str
    rank: int
    worker: int  # above 0: a worker of the rank, or a second process with its number
    world_size: int
    host: str
    pid: int
    attempt: int
    state: str  # "running", "silent", "dead" or "closed"
    source: str  # "journal" or "heartbeat"
    beat_age_s: float | None  # since the last sign of life
    dropped: int
    threads: list[Thread]

    @property
    def name(self) -> str:
        """The number, with the worker's behind a dot."""
        return f"{self.rank}.w{self.worker}" if self.worker else str(self.rank)

    @property
    def alive(self) -> bool:
        return self.state in ("running", "silent")

    @property
    def step(self) -> int | None:
        """The furthest step of its threads; None before the first stage."""
        return max((thread.step for thread in self.threads), default=None)

    @property
    def main(self) -> Thread | None:
        """The thread that tells where the process is: its first one, when that is in a stage."""
        open_ones = [thread for thread in self.threads if thread.open]
        main = [thread for thread in open_ones if thread.tid == self.pid]
        if main:
            return max(main, key=lambda thread: (thread.step, len(thread.open)))
        return min(open_ones, key=lambda thread: thread.open[-1].since_ns, default=None)

    @property
    def stack(self) -> tuple[str, ...]:
        """The names of the main thread's open stages, outermost first."""
        main = self.main
        return tuple(stage.name for stage in main.open) if main else ()

    @property
    def open_s(self) -> float | None:
        """How long the innermost stage of the main thread has been open."""
        main = self.main
        return main.open[-1].open_s if main else None


@dataclass(frozen=True)
class Problem:
    """A file that was left out, and why."""

    file: str
    reason: str


@dataclass
class Found:
    """What is in a log directory."""

    ranks: list[Rank]
    problems: list[Problem]


@dataclass
class _Files:
    """The files of one process, or of several that had the label one after another."""

    journals: list[str] = field(default_factory=list)  # paths
    pointers: list[str] = field(default_factory=list)
    heartbeat: str | None = None


def find_ranks(
    log_dir: str, *, only: Collection[int] | None = None, silent_after_s: float = 10.0
) -> Found:
    """Reads all that `log_dir` holds; `only` names the ranks to look at. OSError when the directory
    cannot be listed."""
    files = _list_files(log_dir, only)
    problems: list[Problem] = []
    ranks = []
    for label, group in files.items():
        rank = _read_group(label, group, silent_after_s, problems)
        if rank is not None:
            ranks.append(rank)
    ranks.sort(key=lambda rank: (rank.rank, rank.worker))
    return Found(ranks, problems)


def _list_files(log_dir: str, only: Collection[int] | None) -> dict[str, _Files]:
    found: dict[str, _Files] = {}
    with os.scandir(log_dir) as entries:
        for entry in entries:
            match = _JOURNAL.fullmatch(entry.name) or _HEARTBEAT.fullmatch(entry.name)
            if match is None or (only is not None and int(match[2]) not in only):
                continue
            files = found.setdefault(match[1], _Files())
            if entry.name.endswith(".heartbeat.json"):
                files.heartbeat = entry.path
            elif entry.name.endswith("-ref"):
                files.pointers.append(entry.path)
            else:
                files.journals.append(entry.path)
    return found


def _read_group(
    label: str, files: _Files, silent_after_s: float, problems: list[Problem]
) -> Rank | None:
    journals = [journal for path in files.journals if (journal := _journal(path, problems))]
    for pointer in files.pointers:
        path = _follow(pointer, problems)
        if path is not None and (journal := _journal(path, problems)):
            journals.append(journal)
    heartbeat = _heartbeat(files.heartbeat, problems) if files.heartbeat else None
    try:
        newest = max(journals, key=_order_of_journal, default=None)
        if newest is not None and (heartbeat is None or _is_newer(newest, heartbeat)):
            return _from_journal(label, newest, silent_after_s)
        return _from_heartbeat(label, heartbeat, silent_after_s) if heartbeat else None
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        file = files.heartbeat or label
        problems.append(Problem(file, f"not a heartbeat of my_utils: {_describe(error)}"))
        return None


def _order_of_journal(journal: dict[str, Any]) -> tuple[bool, int, int]:
    return journal["held"], journal["attempt"], journal["process_start"]


def _is_newer(journal: dict[str, Any], heartbeat: dict[str, Any]) -> bool:
    """Of the two, which knows more. A journal that is held says what is now."""
    if journal["held"]:
        return True
    if journal["attempt"] != heartbeat["attempt"]:
        return bool(journal["attempt"] > heartbeat["attempt"])
    if _is_of_this_boot(journal):
        return True
    return bool(journal["heartbeat_ns"] >= heartbeat["time"] * 1e9)


def _is_of_this_boot(journal: dict[str, Any]) -> bool:
    return bool(journal["boot_id"]) and journal["boot_id"] == boot_id()


def _journal(path: str, problems: list[Problem]) -> dict[str, Any] | None:
    def read() -> dict[str, Any]:
        return dict(_core.read_journal(path))

    return _attempt(path, read, problems)


def _attempt(
    path: str, read: Callable[[], dict[str, Any]], problems: list[Problem]
) -> dict[str, Any] | None:
    """None for a file that vanished, as they do when a process ends in good order, and for one that
    cannot be read, which is a problem."""
    try:
        return read()
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError) as error:
        problems.append(Problem(path, _describe(error)))
        return None


def _describe(error: BaseException) -> str:
    if isinstance(error, OSError) and error.errno is not None:
        return os.strerror(error.errno)
    if isinstance(error, KeyError):
        return f"no {error.args[0]!r} in it"
    return str(error) or type(error).__name__


def _follow(pointer: str, problems: list[Problem]) -> str | None:
    """The journal that a pointer file names. It must be named as the pointer is: a log directory
    that others can write to does not lead anywhere else."""
    try:
        with open(pointer, encoding="utf-8", errors="surrogateescape") as file:
            path = file.readline(8192).rstrip("\n")
    except FileNotFoundError:
        return None
    except OSError as error:
        problems.append(Problem(pointer, _describe(error)))
        return None
    if not path.startswith("/") or f"{os.path.basename(path)}-ref" != os.path.basename(pointer):
        problems.append(Problem(pointer, "does not name a journal of its own name"))
        return None
    return path


def _heartbeat(path: str, problems: list[Problem]) -> dict[str, Any] | None:
    def read() -> dict[str, Any]:
        with open(path, "rb", opener=_open_without_waiting) as file:
            data = file.read(HEARTBEAT_BYTES_MAX + 1)
        if len(data) > HEARTBEAT_BYTES_MAX:
            raise ValueError(f"larger than {HEARTBEAT_BYTES_MAX} bytes: not a heartbeat")
        try:
            content = json.loads(data.decode("utf-8", "replace"))
        except ValueError as error:
            raise ValueError(f"damaged or cut short: {error}") from error
        return _check_heartbeat(content)

    return _attempt(path, read, problems)


def _open_without_waiting(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)


def _check_heartbeat(content: object) -> dict[str, Any]:
    if not isinstance(content, dict) or not isinstance(content.get("version"), int):
        raise ValueError("not a heartbeat of my_utils")
    if content["version"] > HEARTBEAT_VERSION:
        raise ValueError(
            f"heartbeat version {content['version']}; this program reads up to {HEARTBEAT_VERSION}"
        )
    for key in ("rank", "world_size", "pid", "attempt", "dropped"):
        if not isinstance(content.get(key), int):
            raise ValueError(f"not a heartbeat of my_utils: {key!r} is not a number")
    if not isinstance(content.get("time"), int | float):
        raise ValueError("not a heartbeat of my_utils: 'time' is not a number")
    return content


def _split_label(label: str) -> tuple[int, int]:
    match = _LABEL.fullmatch(label)
    if match is None:
        raise ValueError(f"no rank in {label!r}")
    return int(match[1]), int(match[2] or 0)


def _age(then_ns: int, now_ns: int) -> float:
    return max(0, now_ns - then_ns) / 1e9


def _from_journal(label: str, journal: dict[str, Any], silent_after_s: float) -> Rank:
    now = time.time_ns()
    beat = journal["heartbeat_ns"]
    age = _age(beat, now) if beat else None
    held = journal["held"]
    if held:
        state = "silent" if age is not None and age > silent_after_s else "running"
    elif _is_of_this_boot(journal):
        state = "closed" if journal["closed"] else "dead"
    else:
        state = "silent" if age is None or age > silent_after_s else "running"
    rank, worker = _split_label(label)
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
        dropped=journal["dropped"],
        threads=_threads(journal["lanes"], now + journal["time_offset_ns"]),
    )


def _threads(lanes: Iterable[dict[str, Any]], now_ns: int) -> list[Thread]:
    return [
        Thread(
            tid=lane["tid"],
            name=lane["thread_name"],
            tag=lane["tag"],
            step=lane["step"],
            open=[
                OpenStage(s["name"], s["step"], s["start_ns"], _age(s["start_ns"], now_ns))
                for s in lane["open"]
            ],
            last=[
                FinishedStage(
                    s["name"], s["step"], s["start_ns"], (s["end_ns"] - s["start_ns"]) / 1e6
                )
                for s in lane["last"]
            ],
        )
        for lane in lanes
    ]


def _from_heartbeat(label: str, beat: dict[str, Any], silent_after_s: float) -> Rank:
    now = time.time_ns()
    written = round(beat["time"] * 1e9)
    age = _age(written, now)
    if beat.get("closed"):
        state = "closed"
    else:
        state = "silent" if age > silent_after_s else "running"
    offset = round(beat.get("time_offset", 0.0) * 1e9)
    lanes = [
        {
            "tid": int(lane["tid"]),
            "tag": str(lane["tag"]),
            "thread_name": str(lane["thread"]),
            "step": int(lane["step"]),
            "open": [
                {
                    "name": str(stage["name"]),
                    "step": int(stage["step"]),
                    "start_ns": round(stage["since"] * 1e9),
                }
                for stage in lane["open"]
            ],
            "last": [],
        }
        for lane in beat["lanes"]
    ]
    rank, worker = _split_label(label)
    return Rank(
        label=label,
        rank=rank,
        worker=worker,
        world_size=beat["world_size"],
        host=str(beat.get("host", "")),
        pid=beat["pid"],
        attempt=beat["attempt"],
        state=state,
        source="heartbeat",
        beat_age_s=age,
        dropped=beat["dropped"],
        threads=_threads(lanes, max(now, written) + offset),
    )
