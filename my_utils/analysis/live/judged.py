"""What bounds a run that goes on, judged anew from its newest rows.

Judging takes 1 % of the time at most, and bounded memory: the cost does not grow with the run.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Collection, Sequence

from ...core.run_files.hosts import with_hosts
from ..verdict.result import Verdict

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..ledger.recent import Recent

BYTES_MAX = 100_000_000  # of profile CSVs: judging more holds a view up
EVERY_S = 10.0
TIMES_ITS_COST = 100.0
STEPS_LEAST = 100
MARKS_MAX = 1024


class Judged:
    """Needs numpy, which it imports with the first verdict. Not thread-safe.

    window_s: only rows of so many seconds, or of 100 steps where these take longer; None for all
    that fits into 100 MB. recent_s: also what became of the newest so many seconds, from the same
    rows; None for no such line.
    """

    def __init__(
        self,
        log_dirs: Sequence[str],
        ranks: Collection[int] | None,
        window_s: float | None = None,
        recent_s: float | None = None,
    ) -> None:
        self._log_dirs = log_dirs
        self._ranks = None if ranks is None else set(ranks)
        self._window_s = window_s
        self._recent_s = recent_s
        self._verdict: Verdict | None = None
        self.recent: Recent | None = None
        self._next_s = 0.0
        self._marks: deque[tuple[float, int, int]] = deque(maxlen=MARKS_MAX)  # when, bytes, step

    def verdict(self, step: int | None = None) -> Verdict | None:
        """As it was judged last; None where no rank has written a row. step: of the run now."""
        began = time.monotonic()
        if began >= self._next_s:
            written = sum(_bytes_in(folder) for folder in with_hosts(self._log_dirs))
            newest = min(self._bytes_of_window(began, written, step or 0), BYTES_MAX)
            self._verdict, self.recent = self._judge(newest) if written else (None, None)
            took = time.monotonic() - began
            self._next_s = began + max(EVERY_S, TIMES_ITS_COST * took)
        return self._verdict

    def _judge(self, newest_bytes: int) -> tuple[Verdict, Recent | None]:
        from ..ledger.read import LedgerReader
        from ..replay.run_answer import answer_of_run

        reader = None if self._recent_s is None else LedgerReader()
        verdict = answer_of_run(
            self._log_dirs, self._ranks, ledger=reader, newest_bytes=newest_bytes
        ).verdict
        if reader is None or self._recent_s is None:
            return verdict, None
        return verdict, reader.recent(self._recent_s)

    def _bytes_of_window(self, now_s: float, written: int, step: int) -> int:
        if self._window_s is None:
            return BYTES_MAX
        marks = self._marks
        if marks and step < marks[-1][2]:
            marks.clear()
        marks.append((now_s, written, step))
        while len(marks) > 1 and self._is_before(marks[1], now_s, step):
            marks.popleft()
        grown = written - marks[0][1]
        # Before a whole window all counts, and so it does where older rows were removed.
        return grown if self._is_before(marks[0], now_s, step) and grown > 0 else BYTES_MAX

    def _is_before(self, mark: tuple[float, int, int], now_s: float, step: int) -> bool:
        at_s, _, at_step = mark
        assert self._window_s is not None
        return now_s - at_s >= self._window_s and step - at_step >= STEPS_LEAST


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
