"""Calls functions when the process ends, and waits for their threads. Workers of a pool and other
children end with their parent.

Children of multiprocessing do not run atexit before Python 3.13, so finalizers serve there.

>>> call_at_end(print)
>>> call_at_end(print)  # once is enough
>>> atexit.unregister(print)
"""

from __future__ import annotations

import atexit
import os
import signal
import sys
import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

# After what the program itself registers, and before GlobalLogger closes its files.
_PRIORITY = -900

_JOINS = 20
_PR_SET_PDEATHSIG = 1

_known: set[tuple[int, Callable[[], object]]] = set()


def call_at_end(close: Callable[[], object]) -> None:
    """Registers `close`, which is called when this process ends. It must be idempotent.

    Register when the thing to close is created, not at import: a forked child of multiprocessing
    drops what was registered before the fork. Thread-safe.
    """
    this = (os.getpid(), close)
    if this in _known:
        return
    _known.add(this)
    atexit.unregister(close)  # inherited by a forked child
    atexit.register(close)
    process = sys.modules.get("multiprocessing.process")
    if process is not None and process.parent_process() is not None:
        from multiprocessing.util import Finalize

        Finalize(None, close, exitpriority=_PRIORITY)


class OpenObjects(set[T]):
    """The objects of one kind that are open. They stay alive, and are closed when the process ends;
    a forked child has none.

    close: must be idempotent, and take the object out. forget: called in a forked child with each
    object that is open in its parent.
    """

    def __init__(self, close: Callable[[T], object], forget: Callable[[T], object]) -> None:
        super().__init__()
        self._close = close
        self._forget = forget
        os.register_at_fork(after_in_child=self._forget_all)

    def add(self, one: T) -> None:
        """Puts it in, when it is opened."""
        super().add(one)
        call_at_end(self.close_all)

    def close_all(self) -> None:
        """Closes them."""
        for one in list(self):
            self._close(one)

    def _forget_all(self) -> None:
        for one in list(self):
            self._forget(one)
        self.clear()


def join_within(thread: threading.Thread, seconds: float) -> bool:
    """Waits at most `seconds` for a thread. Returns whether it has ended. Never waits for itself.

    It waits in pieces. A time in which the whole process was stopped, and the thread with it,
    counts as one piece.
    """
    if thread is not threading.current_thread():
        for _ in range(_JOINS):
            thread.join(seconds / _JOINS)
    return not thread.is_alive()


def end_with_parent() -> None:
    """Called in a worker of a pool. The worker then ends when its parent is killed. Otherwise it
    would wait for work forever."""
    from multiprocessing import parent_process

    parent = parent_process()
    if parent is None:
        return

    def outlast() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=outlast, name="my_utils parent", daemon=True).start()


def is_tied_to_parent(parent: int) -> bool:
    """Has the kernel kill this process when the thread that started it ends. False where `parent`,
    the PID of its process, has ended before."""
    import ctypes

    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    return os.getppid() == parent


def status_text(status: int) -> str:
    """How a process ended, of its exit status or, below 0, of the signal.

    >>> status_text(7), status_text(-9), status_text(-40)
    ('with exit status 7', 'by SIGKILL', 'by signal 40')
    """
    if status >= 0:
        return f"with exit status {status}"
    try:
        return f"by {signal.Signals(-status).name}"
    except ValueError:
        return f"by signal {-status}"
