"""Makes worker processes end with the process that they work for."""

from __future__ import annotations

import multiprocessing
import os
import threading
from multiprocessing.process import BaseProcess


def end_with_parent() -> None:
    """Called in a worker of a pool. The worker then ends when its parent is killed. Otherwise it
    would wait for work forever."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(
            target=_outlast, args=(parent,), name="my_utils parent", daemon=True
        ).start()


def _outlast(parent: BaseProcess) -> None:
    parent.join()
    os._exit(1)
