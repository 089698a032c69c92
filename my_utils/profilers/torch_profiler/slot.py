"""Allows one profiler at a time.

A process has one profiler of torch. Two threads that profile crash it, and nested profilers lose
their events silently. A profiler that is left running crashes the exit, and a child that was forked
meanwhile hangs when it profiles. So all code here that opens the profiler takes this slot first. If
the slot is taken, the second taker gets a warning and runs unprofiled. The holder is closed when
the process exits. A forked child starts with a free slot.

A holder may know that what it profiles can end without a word to it, as a training does that
raises. It is asked now and then, and before the next taker is turned away; once that has ended it
is closed, in the thread that took the slot. A thread other than the main one is not interrupted:
there the next taker closes it, or the exit.

All functions are thread-safe.

>>> lease = take("an example", close=lambda: None)
>>> holder()
'an example'
>>> take("another", close=lambda: None) is None
True
>>> lease.release()
>>> holder() is None
True
"""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections.abc import Callable

from ... import _core
from ...core.process_end import call_at_end
from ...core.warnings import warn_once

_logger = logging.getLogger("my_utils")

POLL_S = 0.5  # between two questions whether a holder is stale


class Lease:
    """The slot, held. `release` gives it back, as often as it is called."""

    def __init__(
        self, owner: str, close: Callable[[], object], over: Callable[[], bool] | None
    ) -> None:
        self.owner = owner
        self._close = close
        self._over = over
        self._released = threading.Event()

    def release(self) -> None:
        """Gives the slot back, after the profiler was stopped."""
        with _slot.lock:
            if _slot.lease is self:
                _slot.lease = None
        self._released.set()

    @property
    def held(self) -> bool:
        """False once released, and in a forked child."""
        return _slot.lease is self

    def close(self) -> None:
        """Stops the profiler for the holder; what it raises is logged."""
        try:
            self._close()
        except Exception:
            _logger.exception("%s could not be closed", self.owner)
        self.release()

    @property
    def stale(self) -> bool:
        """Whether what it profiles has ended without a notice."""
        return self.held and self._over is not None and self._over()

    def close_stale(self) -> None:
        """Closes it if it is stale."""
        if self.stale:
            _logger.warning(
                "%s is still profiling, but what it profiles has ended; it is closed now",
                self.owner,
            )
            self.close()

    def watch(self) -> None:
        """Has it closed in the main thread, soon after it is stale."""
        while not self._released.wait(POLL_S):
            if self.stale:
                _core.call_in_main_thread(self.close_stale)
                return


class _Slot:
    """The state of the process."""

    def __init__(self) -> None:
        self.lock = threading.RLock()  # a finalizer may come in while the lock is held
        self.lease: Lease | None = None

    def forget(self) -> None:
        """In a forked child: the parent's profiler is not the child's to close."""
        self.lock = threading.RLock()
        self.lease = None


_slot = _Slot()
os.register_at_fork(after_in_child=_slot.forget)


def take(
    owner: str, close: Callable[[], object], over: Callable[[], bool] | None = None
) -> Lease | None:
    """The slot, or None when another profiler runs, with one warning for each owner.

    owner: who asks, for messages: "ProfilerWrapper(prefix='run')".
    close: stops the profiler and writes what there is; called when the process exits before
        `release`. It runs in the thread that exits the process.
    over: whether what is profiled has ended without `release`; called from any thread.
    """
    found = _slot.lease
    if found is not None:
        found.close_stale()
    with _slot.lock:
        taken_by = holder()
        if taken_by is None:
            _slot.lease = lease = Lease(owner, close, over)
            call_at_end(_close_at_end)
            if over is not None and threading.current_thread() is threading.main_thread():
                threading.Thread(target=lease.watch, name="my_utils profiler", daemon=True).start()
            return lease
    warn_once(
        f"slot {owner}",
        f"{owner} runs unprofiled: {taken_by} is profiling, and torch has one profiler a process",
    )
    return None


def holder() -> str | None:
    """Who profiles now, or None. A profiler that was opened without the slot is seen too."""
    if _slot.lease is not None:
        return _slot.lease.owner
    return "a torch.profiler.profile of the program" if program_profiles() else None


def program_profiles() -> bool:
    """Whether torch's profiler runs; while the slot is free that is one of the program's own."""
    profiler = sys.modules.get("torch.autograd.profiler")
    return bool(getattr(profiler, "_is_profiler_enabled", False))


def _close_at_end() -> None:
    lease = _slot.lease
    if lease is not None:
        lease.close()
