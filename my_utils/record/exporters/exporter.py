"""The common part of all exporters: when times are read, and the thread that writes them.

A training thread only takes a snapshot of the totals, in some microseconds, and puts it into a
queue. The exporter's thread takes it from there. Errors of the target give one warning and a count.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable
from typing import NamedTuple, Self

from ... import _core
from ...core.arguments import check_int, check_seconds
from ...core.process_end import call_at_end, join_within
from ...core.ranks import check_rank, check_ranks, is_chosen
from ...core.reprs import short_repr
from ...core.warnings import warn_once
from .totals import Source, StageTotal, check_source, cleared_totals, read_totals

QUEUE_MAX = 4096  # steps that wait while nothing can be written
WAKE_S = 1.0  # how often the thread checks the queue
LAST_WRITE_S = 30.0  # how long the end of the process waits for the last ones

_open: weakref.WeakSet[StageExporter] = weakref.WeakSet()


class Snapshot(NamedTuple):
    """The totals at a step. at: Unix time in seconds."""

    step: int
    at: float
    totals: dict[str, StageTotal]


class StageExporter:
    """The base of the exporters; a subclass has `_write`, and `_end` if there is something to end.

    `written` counts the steps or intervals that were written, `failed` attempts that were not, and
    `dropped` steps that found no place in the queue. All methods are thread-safe. In a forked
    child an exporter does nothing.
    """

    _needs_all = True  # whether each snapshot counts, or only the newest

    def __init__(
        self,
        source: Source,
        *,
        every_s: float,
        every_steps: int,
        ranks: int | Iterable[int] | None,
    ) -> None:
        self.written = self.failed = self.dropped = 0
        self._source = check_source(source)
        self._cleared = cleared_totals(source)  # before this exporter
        self._every_s = check_seconds("every_s", every_s)
        self._every_steps = check_int("every_steps", every_steps, 1)
        self._active = is_chosen(check_ranks("ranks", ranks))
        self._pid = os.getpid()
        self._calls = 0
        self._reads = 0
        self._last_step: int | None = None  # that `step` was called with
        self._queue: deque[Snapshot] = deque()
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    def __repr__(self) -> str:
        return short_repr(self, "written", "failed", "dropped")

    def _begin(self) -> None:
        """Starts the thread; must be called when the subclass is ready."""
        if not self._active:
            return
        self._thread = threading.Thread(
            target=self._run, name=f"my_utils {type(self).__name__}", daemon=True
        )
        self._thread.start()
        _open.add(self)
        call_at_end(_close_all)

    def step(self, step: int | None = None) -> None:
        """Counts the times since the previous call as those of this step; they are written soon.

        step: its number; by default that of `MyTimer.set_step`, and with a `TimeManager` a count
            from 0. Once it was called, times are no longer taken at intervals.

        Call it once a step, after `timer.step()`. TypeError if `step` is not an integer, ValueError
        if it is negative. It does not wait for the output.
        """
        if step is not None:
            check_rank("step", step)
        if not self._is_on():
            return
        with self._lock:
            self._calls += 1
            self._last_step = step
            if self._calls % self._every_steps == 0:
                self._take_lock_held(step)

    def close(self) -> None:
        """Writes what is left, also steps short of `every_steps`, and ends the thread. May be
        called again; the end of the process calls it."""
        if not self._is_on():
            return
        with self._lock:
            if self._calls % self._every_steps != 0:
                self._take_lock_held(self._last_step)
        self._over.set()
        thread = self._thread
        if thread is not None and not join_within(thread, LAST_WRITE_S):
            self._count_failure(TimeoutError(f"no answer within {LAST_WRITE_S:g} s"))
        _open.discard(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _is_on(self) -> bool:
        return self._thread is not None and self._pid == os.getpid() and not self._over.is_set()

    def _take_lock_held(self, step: int | None) -> None:
        """Takes a snapshot and queues it under one lock, so that snapshots stay in order."""
        snapshot = self._snapshot(step)
        if len(self._queue) == QUEUE_MAX:
            self._queue.popleft()  # its calls count for the next one
            self.dropped += 1
        self._queue.append(snapshot)

    def _snapshot(self, step: int | None) -> Snapshot:
        if step is None:
            source = self._source
            step = self._reads if isinstance(source, _core.TimeRecorder) else source.current_step
        self._reads += 1
        return Snapshot(step, time.time(), read_totals(self._source, self._cleared))

    # --- the thread ---

    def _run(self) -> None:
        due = time.monotonic() + self._every_s
        over = False
        while not over:
            over = self._over.wait(min(WAKE_S, self._every_s))
            if over or time.monotonic() >= due:
                due = time.monotonic() + self._every_s
                with self._lock:
                    if self._calls == 0:
                        self._take_lock_held(None)
            self._try(self._write_queue)
        self._try(self._end)

    def _write_queue(self) -> None:
        while (snapshot := self._next()) is not None:
            self._write(snapshot)
            self.written += 1

    def _next(self) -> Snapshot | None:
        with self._lock:
            while len(self._queue) > 1 and not self._needs_all:
                self._queue.popleft()
            return self._queue.popleft() if self._queue else None

    def _try(self, act: Callable[[], object]) -> None:
        try:
            act()
        except Exception as error:
            self._count_failure(error)

    def _count_failure(self, error: Exception) -> None:
        self.failed += 1
        warn_once(
            type(self).__name__,
            f"{type(self).__name__} could not write stage times: {type(error).__name__}: {error}",
        )

    def _write(self, snapshot: Snapshot) -> None:
        """A snapshot that raises is dropped. The next one is tried at the next wake."""
        raise NotImplementedError

    def _end(self) -> None:
        """Closes what is open."""


def _close_all() -> None:
    for exporter in list(_open):
        exporter.close()
