"""What is to be closed when the process ends, in children of multiprocessing too, which know no
atexit before Python 3.13.

>>> call_at_end(print)
>>> call_at_end(print)  # once is enough
>>> atexit.unregister(print)
"""

from __future__ import annotations

import atexit
import os
import sys
from collections.abc import Callable

__all__ = ["call_at_end"]

# Behind what the program itself registers, and before GlobalLogger closes its files.
_PRIORITY = -900

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
