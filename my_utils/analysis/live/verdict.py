"""What bounds the run, above what its ranks do now."""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Sequence

BYTES_MAX = 100_000_000  # of profile CSVs: reading more holds the view up
EVERY_S = 10.0
TIMES_ITS_COST = 100.0  # so that it takes 1 % of the time at most


class VerdictLines:
    """The lines of `my_utils why`, worked out anew every ten seconds, or more rarely where it takes
    long. It needs numpy, so that is imported with the first lines."""

    def __init__(self, log_dirs: Sequence[str], ranks: Collection[int] | None) -> None:
        self.log_dirs = log_dirs
        self.ranks = None if ranks is None else set(ranks)
        self._lines: list[str] = []
        self._next_s = 0.0

    def lines(self, width: int) -> list[str]:
        """One line where the run is not judged; none where no rank has written a row."""
        began = time.monotonic()
        if began >= self._next_s:
            self._lines = self._worked_out(width)
            took = time.monotonic() - began
            self._next_s = began + max(EVERY_S, TIMES_ITS_COST * took)
        return self._lines

    def _worked_out(self, width: int) -> list[str]:
        size = sum(_bytes_in(folder) for folder in self.log_dirs)
        if not size:
            return []
        if size > BYTES_MAX:
            return [f"what bounds the run: my_utils why {' '.join(self.log_dirs)}"]
        from ..replay.inputs import verdict_of

        verdict = verdict_of(list(self.log_dirs), self.ranks)
        lines = verdict.lines(width)
        return lines[:1] if verdict.status == "not judged" else lines


def _bytes_in(folder: str) -> int:
    try:
        with os.scandir(folder) as entries:
            return sum(
                entry.stat().st_size
                for entry in entries
                if entry.name.startswith("profile_rank_") and entry.name.endswith(".csv")
            )
    except OSError:
        return 0
