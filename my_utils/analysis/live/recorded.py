"""What `my_utils run` has recorded of a run in the profile CSVs of its ranks.

Rows `my_utils.sync` name the stages in which ranks wait for one another, rows `my_utils.group` the
members of a process group, and a row `my_utils.run_end` says how a process ended.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence

from ...core.ranges import parse_members
from ...core.run_files.hosts import with_hosts
from ...core.run_files.run_metadata import read_run_metadata
from ...core.run_files.state import NUMBERED_GROUP, Rank

FILES_READ = 8  # of each directory: the stages of a run are in the files of all ranks
AGAIN_S = 10.0
AGAIN_MAX_S = 600.0

SYNC, GROUP, END = "my_utils.sync", "my_utils.group", "my_utils.run_end"

_Members = dict[str, frozenset[int]]  # of each label or stage


class Recorded:
    """What is recorded, read where it is asked for, and again later where there is none yet. Not
    thread-safe."""

    def __init__(self, log_dirs: Sequence[str]) -> None:
        self._log_dirs = log_dirs
        self._names: frozenset[str] = frozenset()
        self._next_s = 0.0
        self._members: dict[int, _Members] = {}
        self._next_read_s: dict[int, float] = {}
        self._wait_s: dict[int, float] = {}
        self._errors: dict[tuple[str, int], str] = {}

    def names(self) -> frozenset[str]:
        """The stages in which ranks wait for one another; empty while none is recorded."""
        now = time.monotonic()
        if not self._names and now >= self._next_s:
            runs = map(read_run_metadata, _profiles(self._log_dirs))
            stages = (pairs.get("stage", "") for run in runs for pairs in run.named(SYNC))
            self._names = frozenset(stage.rpartition("/")[2] for stage in stages if stage)
            self._next_s = now + AGAIN_S
        return self._names

    def members(self, rank: Rank, label: str) -> frozenset[int] | None:
        """The ranks of a group, by its label in the rows of calls or by the stage in which it
        meets; None where they are not recorded."""
        known = self._members.get(rank.rank, {})
        if label not in known:
            self._read_members(rank)
        return self._members.get(rank.rank, {}).get(label)

    def _read_members(self, rank: Rank) -> None:
        """Again ever more seldom: groups are made at the beginning, as a rule."""
        now = time.monotonic()
        if now < self._next_read_s.get(rank.rank, 0.0):
            return
        wait_s = self._wait_s.get(rank.rank, AGAIN_S)
        self._next_read_s[rank.rank] = now + wait_s
        self._wait_s[rank.rank] = min(2 * wait_s, AGAIN_MAX_S)
        for path in self._paths_of(rank):
            for pairs in read_run_metadata(path).named(GROUP, SYNC):
                label = pairs.get("label") or pairs.get("stage", "").rpartition("/")[2]
                ranks = frozenset(parse_members(pairs.get("members", "")))
                if not label or rank.rank not in ranks:
                    continue
                same = [rank.rank] if NUMBERED_GROUP.fullmatch(label) else ranks
                for member in same:
                    self._members.setdefault(member, {})[label] = ranks

    def error(self, rank: Rank) -> str:
        """The name of the exception that ended the process; "" where none is known. A process that
        was killed has written no row of its end, but one before it may have."""
        key = rank.label, rank.pid
        if key not in self._errors:
            runs = map(read_run_metadata, self._paths_of(rank))
            errors = [
                note.pairs.get("error", "")
                for run in runs
                for note in run.notes[run.first_note :]
                if note.name == END
            ]
            self._errors[key] = errors[-1] if errors else ""
        return self._errors[key]

    def _paths_of(self, rank: Rank) -> list[str]:
        name = f"profile_rank_{rank.rank}.csv"
        return [os.path.join(folder, name) for folder in with_hosts(self._log_dirs)]


def _profiles(log_dirs: Sequence[str]) -> Iterator[str]:
    for folder in with_hosts(log_dirs):
        try:
            with os.scandir(folder) as entries:
                names = sorted(
                    entry.name
                    for entry in entries
                    if entry.name.startswith("profile_rank_") and entry.name.endswith(".csv")
                    and ".part" not in entry.name and entry.is_file()
                )  # fmt: skip
        except OSError:
            continue
        yield from (os.path.join(folder, name) for name in names[:FILES_READ])
