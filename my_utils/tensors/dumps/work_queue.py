"""A queue of jobs for one background thread, limited in bytes.

The first job starts the thread. It is a daemon, so that it never blocks the exit, which waits for
the jobs that are left. A forked child has an empty queue and no thread: the jobs belong to its
parent.
"""

from __future__ import annotations

import collections
import os
import threading
import weakref
from collections.abc import Callable

from ...core.process_end import call_at_end

_queues: weakref.WeakSet[WriteQueue] = weakref.WeakSet()


class WriteQueue:
    """Runs jobs in their order on a separate thread. Thread-safe."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self._start_anew()
        _queues.add(self)

    def _start_anew(self) -> None:
        self._changed = threading.Condition()
        # The jobs that wait, behind the one that runs.
        self._jobs: collections.deque[tuple[Callable[[], None], int]] = collections.deque()
        self._bytes = 0  # of all of them
        self._closing = False
        self._starting = False
        self._thread: threading.Thread | None = None

    def put(self, job: Callable[[], None], size: int) -> None:
        """Waits while the queue is full; a job larger than the queue waits until it is empty.

        The job must not raise. Where no thread can be started any more, as when the interpreter
        ends, the job runs at once.
        """
        with self._changed:
            self._changed.wait_for(lambda: not self._bytes or self._bytes + size <= self.max_bytes)
            if self._start_thread():
                self._jobs.append((job, size))
                self._bytes += size
                self._changed.notify_all()
                return
        job()

    def _start_thread(self) -> bool:
        """A signal handler that dumps while the thread starts must not start another."""
        if self._starting or (self._thread is not None and self._thread.is_alive()):
            return True
        thread = threading.Thread(target=self._work, name="my_utils dump", daemon=True)
        self._starting, self._thread = True, thread
        try:
            thread.start()
        except RuntimeError:
            self._thread = None
            return False
        finally:
            self._starting = False
        call_at_end(_flush_all)
        return True

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._jobs or self._closing)
                if not self._jobs:
                    self._thread = None
                    self._changed.notify_all()
                    return
                job, size = self._jobs[0]
            try:
                job()
            finally:
                del job
                with self._changed:
                    self._jobs.popleft()
                    self._bytes -= size
                    self._changed.notify_all()

    def flush(self, timeout_s: float | None = None) -> bool:
        """Waits until all is done; False when that took longer."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._jobs, timeout_s)

    def close(self) -> None:
        """Waits until all is done and the thread has ended. A later `put` starts another."""
        with self._changed:
            thread = self._thread
            if thread is None or not thread.is_alive():
                return
            self._closing = True
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._thread is not thread)
            self._closing = False
        thread.join()


def _flush_all() -> None:
    for queue in list(_queues):
        queue.flush()


def _after_fork_in_child() -> None:
    for queue in list(_queues):
        queue._start_anew()


os.register_at_fork(after_in_child=_after_fork_in_child)
