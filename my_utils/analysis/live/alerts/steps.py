"""What the steps that polls see say of a run: whether they take longer than they did, and which
share of the newest hour went into steps. The cost does not grow with the run.

The ledger (`analysis/ledger`) reads all rows of a run for its goodput. Here the time from one step
to the next is good, as it is there; what is before the first step of a start, or after the last one
while no other comes, is not. What a restart does again, compilation and warm-up count as good.
"""

from __future__ import annotations

import statistics
from collections import deque

WINDOW_S = 300.0
SAMPLES_LEAST = 20  # a window
LEVELS_LEAST = 3  # before anything is slower than usual
LEVELS_MAX = 64
SLOWER, AS_BEFORE = 1.10, 1.05
HOUR_S = 3600.0
KNOWN_LEAST = 0.25  # of the hour, before there is a share: a launch alone is no trouble
MARKS = 120  # an hour
LATE = 5.0  # mean steps, or a minute, that a step may take before it counts as lost


class Steps:
    """Not thread-safe; times of one clock that never goes back. began_s: of the job. window_s: of
    which a level is the median, so that a checkpoint is one value of many. hour_s: of the share."""

    def __init__(self, began_s: float, window_s: float = WINDOW_S, hour_s: float = HOUR_S) -> None:
        self._window_s, self._hour_s = window_s, hour_s
        self._began_s = self._now_s = began_s
        self._window_began_s = 0.0
        self._moved_s, self._attempt, self._step = began_s, -1, -1
        self._timed: tuple[float, int] | None = None
        self._samples: list[float] = []
        self._levels: list[float] = []
        self._every, self._windows, self._above = 1, 0, 0
        self._good_s = 0.0
        self._marks: deque[tuple[float, float]] = deque([(began_s, 0.0)], MARKS + 1)
        self.level_s = 0.0  # seconds a step in the newest window
        self.is_slower = False

    @property
    def usual_s(self) -> float:
        """Seconds a step, over the run; 0.0 before enough is known."""
        return statistics.median(self._levels) if len(self._levels) >= LEVELS_LEAST else 0.0

    @property
    def goodput(self) -> float | None:
        """None while too little is known."""
        known_s = min(self._now_s - self._began_s, self._hour_s)
        if known_s < KNOWN_LEAST * self._hour_s:
            return None
        since_s = self._now_s - known_s
        before_s = next(good_s for at_s, good_s in reversed(self._marks) if at_s <= since_s)
        mean_s = statistics.fmean(self._samples) if self._samples else self.level_s
        is_open_s = min(self._now_s - max(self._moved_s, since_s), max(LATE * mean_s, 60.0))
        open_s = is_open_s if self._step >= 0 else 0.0
        return min((self._good_s - before_s + open_s) / known_s, 1.0)

    def add(self, now_s: float, attempt: int, step: int) -> None:
        """A poll. step: of the furthest rank, -1 where no rank lives."""
        self._now_s = now_s
        if now_s - self._marks[-1][0] >= self._hour_s / MARKS:
            self._marks.append((now_s, self._good_s))
        if step < 0 or (attempt == self._attempt and step == self._step):
            return
        if attempt == self._attempt and step > self._step >= 0:
            self._good_s += now_s - self._moved_s
        self._moved_s, self._attempt, self._step = now_s, attempt, step

    def time(self, at_s: float, step: int) -> None:
        """When the run was at the same place of which step; of any clock."""
        before, self._timed = self._timed, (at_s, step)
        if before is None or step < before[1]:
            self._samples, self._window_began_s = [], at_s
            return
        if step == before[1]:
            self._timed = before
            return
        self._samples.append((at_s - before[0]) / (step - before[1]))
        if at_s - self._window_began_s >= self._window_s and len(self._samples) >= SAMPLES_LEAST:
            self._close_window(statistics.median(self._samples))
            self._samples, self._window_began_s = [], at_s

    def _close_window(self, level_s: float) -> None:
        """What is usual is the median of windows from all of the run, of which ever fewer are kept;
        none while they are slower."""
        self.level_s = level_s
        self._above = self._above + 1 if level_s >= SLOWER * self.usual_s > 0 else 0
        self.is_slower = self._above >= 2 or (self.is_slower and level_s > AS_BEFORE * self.usual_s)
        self._windows += 1
        if self._above or self.is_slower or self._windows % self._every:
            return
        self._levels.append(level_s)
        if len(self._levels) == LEVELS_MAX:
            self._levels = self._levels[::2]
            self._every *= 2
