"""In which stages the ranks of a run wait for one another.

`my_utils run` records them, in rows `my_utils.sync` at the beginning of each profile CSV. Beside
these, and in every other run, a stage counts that has the name of a collective ("all_reduce").
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Collection, Iterator, Sequence
from urllib.parse import unquote_to_bytes

from ...core.run_files.state import Rank
from ...core.trusted_open import open_without_waiting
from ..verdict.kinds import kind_of_stage

FILES_READ = 8  # of each directory: what a run records of itself stands in the files of all ranks
BYTES_READ = 256 << 10  # of the beginning of a file
AGAIN_S = 10.0

_ROW = re.compile(rb",my_utils\.sync,INSTANT,,\"?[^\n]*?\bstage=([^,\"\n]+)")


class Meetings:
    """The names of the recorded stages, searched for until there are some. Not thread-safe."""

    def __init__(self, log_dirs: Sequence[str]) -> None:
        self._log_dirs = log_dirs
        self._names: frozenset[str] = frozenset()
        self._next_s = 0.0

    def names(self) -> frozenset[str]:
        """Empty while none is recorded."""
        now = time.monotonic()
        if not self._names and now >= self._next_s:
            self._names = frozenset(_recorded(self._log_dirs))
            self._next_s = now + AGAIN_S
        return self._names


def _recorded(log_dirs: Sequence[str]) -> Iterator[str]:
    for folder in log_dirs:
        for path in _profiles(folder):
            try:
                with open(path, "rb", opener=open_without_waiting) as file:
                    begin = file.read(BYTES_READ)
            except OSError:
                continue
            for name in _ROW.findall(begin):
                yield unquote_to_bytes(name).decode("utf-8", "replace").rpartition("/")[2]


def _profiles(folder: str) -> list[str]:
    try:
        with os.scandir(folder) as entries:
            names = sorted(
                entry.name
                for entry in entries
                if entry.name.startswith("profile_rank_") and entry.name.endswith(".csv")
                and entry.is_file()
            )  # fmt: skip
    except OSError:
        return []
    return [os.path.join(folder, name) for name in names[:FILES_READ]]


def meeting_of(rank: Rank, names: Collection[str]) -> str | None:
    """The stage in which the main thread waits for other ranks, or may; None where it does not."""
    if rank.call is not None:
        return rank.call.name
    for stage in rank.stack:
        if stage in names or kind_of_stage(stage) == "communication":
            return stage
    return None


def in_meeting(rank: Rank, names: Collection[str]) -> bool:
    return meeting_of(rank, names) is not None
