"""What is to be closed when the process ends, in children of multiprocessing too, which know no
atexit before Python 3.13; and a wait for the threads that do it.

>>> call_at_end(print)
>>> call_at_end(print)  # once is enough
>>> atexit.unregister(print)
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
from collections.abc import Callable

__all__ = ["call_at_end", "join_within"]

# Behind what the program itself registers, and before GlobalLogger closes its files.
_PRIORITY = -900

_JOINS = 20

_known: set[tuple[int, Callable[[], object]]] = set()


def call_at_end(close: Callable[[], object]) -> None:
    """Has `close` called when this process ends. It must bear to be called twice.

    To be called where there begins to be something to close, not at import: a forked child of
    multiprocessing forgets what was registered before. Thread-safe.
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


def join_within(thread: threading.Thread, seconds: float) -> bool:
    """Waits for a thread so long at most, and tells whether it has ended; does not wait for itself.

    It waits in pieces: a time in which the whole process was stopped, the thread with it, counts
    as one of them.
    """
    if thread is not threading.current_thread():
        for _ in range(_JOINS):
            thread.join(seconds / _JOINS)
    return not thread.is_alive()
