"""The reports of a command's processes to the parent on their host: lines in one file.

`python`: an interpreter was reached. `torch`: torch was executed in it. `rank {…}`: it trains, and
writes to the folder that is there. `exit {…}`: how one of them ended, said by its launcher.
`other …`: `import my_utils` leads to something else there. `failed …`: my_utils cannot be imported
there.
Each line is one write at the end of the file, so that lines do not mix.
"""

from __future__ import annotations

import contextlib
import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..core.trusted_open import open_without_waiting
from .environment import REPORT, passed_on
from .stages.late_imports import when_imported

_BYTES_MAX = 64 << 20
_FAILURES = "torch.distributed.elastic.multiprocessing.errors"


@dataclass
class Reported:
    """What came in. folders: where ranks write, the newest of each; ranks: those that did, each
    with the pid of its newest process."""

    pythons: int = 0
    torches: int = 0
    ranks: dict[int, int] = field(default_factory=dict)
    folders: dict[int, str] = field(default_factory=dict)  # of each process, by its pid
    attempts: dict[int, int] = field(default_factory=dict)  # starts of the launcher, by pid
    attempt: int = 0  # the last of these that was reported
    exits: dict[int, int] = field(default_factory=dict)  # by pid; -n where signal n ended it
    own_setup: set[str] = field(default_factory=set)
    others: list[str] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    def places(self) -> list[str]:
        """The folders, each once, in the order of the pids."""
        return list(dict.fromkeys(self.folders[pid] for pid in sorted(self.folders)))

    def agreed_places(self) -> list[str]:
        """Without those that the script has chosen."""
        return [place for place in self.places() if place not in self.own_setup]

    def exits_of_ranks(self) -> dict[int, int]:
        """Of each rank of the last attempt that did not end with 0, its exit status. A rank of an
        earlier one may be on another host now."""
        return {
            rank: self.exits[pid]
            for rank, pid in self.ranks.items()
            if pid in self.exits and self.attempts[pid] == self.attempt
        }


def report_rank(rank: int, folder: Path, *, own_setup: bool) -> None:
    """Tells the parent, if there is one, where this process writes.

    own_setup: the script has chosen the folder.
    """
    from ..core.identity import attempt_from_environment

    about = {
        "rank": rank, "pid": os.getpid(), "folder": str(folder), "own": own_setup,
        "attempt": attempt_from_environment() or 0,
    }  # fmt: skip
    _report("rank", about)


def watch_exits() -> None:
    """Tells the parent how the ranks end that this process starts, if it is torchrun's: only the
    launcher learns whether one ended by a signal or with a status. A rank starts none."""
    if "RANK" not in os.environ:
        when_imported(_FAILURES, _report_failures)


def _report_failures(errors: Any) -> None:
    """torch makes a ProcessFailure of each rank that did not end with 0."""
    failure = getattr(errors, "ProcessFailure", None)
    completed = getattr(failure, "__post_init__", None)
    if failure is None or completed is None:
        return

    def complete(self: Any) -> None:
        completed(self)
        pid, status = getattr(self, "pid", None), getattr(self, "exitcode", None)
        if isinstance(pid, int) and isinstance(status, int):
            _report("exit", {"pid": pid, "status": status})

    failure.__post_init__ = complete


def _report(word: str, about: dict[str, object]) -> None:
    with contextlib.suppress(OSError):  # also where there is no parent
        file = os.open(passed_on(REPORT) or "", os.O_WRONLY | os.O_APPEND)
        try:
            os.write(file, f"{word} {json.dumps(about)}\n".encode())
        finally:
            os.close(file)


def read_reports(path: Path) -> Reported:
    """Lines that are not whole are ignored. OSError if the file cannot be read."""
    found = Reported()
    with open(path, encoding="utf-8", errors="replace", opener=open_without_waiting) as file:
        for line in file.read(_BYTES_MAX).splitlines():
            word, _, rest = line.partition(" ")
            if word == "python":
                found.pythons += 1
            elif word == "torch":
                found.torches += 1
            elif word == "other":
                found.others.append(rest)
            elif word == "failed":
                found.failures.append(rest)
            elif word in ("rank", "exit"):
                add = _add_rank if word == "rank" else _add_exit
                with contextlib.suppress(ValueError, KeyError, TypeError, RecursionError):
                    add(found, json.loads(rest))
    return found


def _add_rank(found: Reported, about: dict[str, Any]) -> None:
    folder = str(about["folder"])
    rank, pid = int(about["rank"]), int(about["pid"])
    found.ranks[rank] = pid
    found.folders[pid] = folder
    found.attempts[pid] = found.attempt = int(about.get("attempt", 0))
    if about["own"]:
        found.own_setup.add(folder)


def _add_exit(found: Reported, about: dict[str, Any]) -> None:
    found.exits[int(about["pid"])] = int(about["status"])
