"""What `my_utils run` has recorded of a run in the profile CSVs of its ranks.

Rows `my_utils.sync` name the stages in which ranks wait for one another, rows `my_utils.group` the
members of a process group, and a row `my_utils.run_end` says how a process ended.
"""

from __future__ import annotations

import math
import os
import re
import time
from collections.abc import Iterator, Sequence

from ...core.ranges import members_of
from ...core.run_files.row_metadata import metadata_pairs
from ...core.run_files.state import NUMBERED_GROUP, Rank
from ...core.trusted_open import open_without_waiting

FILES_READ = 8  # of each directory: the stages of a run are in the files of all ranks
BYTES_READ = 256 << 10  # of the beginning of a file
END_READ = 64 << 10
AGAIN_S = 10.0

_SYNC = re.compile(rb",my_utils\.sync,INSTANT,,\"?([^\n]*)")
_GROUP = re.compile(rb",my_utils\.group,INSTANT,,\"?([^\n]*)")
_BEGIN = b",my_utils.process,INSTANT,"
_END = re.compile(rb",my_utils\.run_end,INSTANT,,\"?([^\n]*)")

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
        self._errors: dict[tuple[str, int], str] = {}

    def names(self) -> frozenset[str]:
        """The stages in which ranks wait for one another; empty while none is recorded."""
        now = time.monotonic()
        if not self._names and now >= self._next_s:
            rows = (_rows(_read(path), _SYNC) for path in _profiles(self._log_dirs))
            stages = (pairs.get("stage", "") for found in rows for pairs in found)
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
        """Not again once the beginning of a file is complete: it does not change any more."""
        now = time.monotonic()
        if now < self._next_read_s.get(rank.rank, 0.0):
            return
        beginnings = [_read(path) for path in self._paths_of(rank)]
        is_complete = any(len(data) == BYTES_READ for data in beginnings)
        self._next_read_s[rank.rank] = math.inf if is_complete else now + AGAIN_S
        for data in beginnings:
            for pairs in [*_rows(data, _GROUP), *_rows(data, _SYNC)]:
                label = pairs.get("label") or pairs.get("stage", "").rpartition("/")[2]
                ranks = frozenset(members_of(pairs.get("members", "")))
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
            files = (_read(path, of_end=True) for path in self._paths_of(rank))
            ends = (_rows(data.rpartition(_BEGIN)[2], _END) for data in files)
            last: dict[str, str] = next((rows[-1] for rows in ends if rows), {})
            self._errors[key] = last.get("error", "")
        return self._errors[key]

    def _paths_of(self, rank: Rank) -> list[str]:
        return [os.path.join(folder, f"profile_rank_{rank.rank}.csv") for folder in self._log_dirs]


def _read(path: str, *, of_end: bool = False) -> bytes:
    """The beginning of a file, or its end; empty where it cannot be read."""
    try:
        with open(path, "rb", opener=open_without_waiting) as file:
            if of_end:
                file.seek(max(0, os.fstat(file.fileno()).st_size - END_READ))
            return file.read(END_READ if of_end else BYTES_READ)
    except OSError:
        return b""


def _rows(data: bytes, kind: re.Pattern[bytes]) -> list[dict[str, str]]:
    """The metadata of the rows of a kind."""
    found = (row.decode("utf-8", "replace") for row in kind.findall(data))
    return [metadata_pairs(row.rstrip().removesuffix('"')) for row in found]


def _profiles(log_dirs: Sequence[str]) -> Iterator[str]:
    for folder in log_dirs:
        try:
            with os.scandir(folder) as entries:
                names = sorted(
                    entry.name
                    for entry in entries
                    if entry.name.startswith("profile_rank_") and entry.name.endswith(".csv")
                    and entry.is_file()
                )  # fmt: skip
        except OSError:
            continue
        yield from (os.path.join(folder, name) for name in names[:FILES_READ])
