"""The current step and the open stages of the timers of this process.

>>> from my_utils import MyTimer
>>> timer = MyTimer()
>>> timer.set_step(7)
>>> with timer.time_stage("iter"), timer.time_stage("forward"):
...     where_now()
Where(step=7, stage='iter/forward')
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import NamedTuple

from ... import _core

OpenThread = tuple[int, str, int, tuple[str, ...]]


class Where(NamedTuple):
    """A place in a run."""

    step: int | None
    """None before any timer recorded."""
    stage: str
    """The open stages joined by "/", outermost first; empty when none is open."""


def where_now() -> Where:
    """Where this process is: its main thread, or the first other one that has a stage open.

    With several timers on a thread it is the one that is furthest and deepest. Thread-safe, and
    takes a few microseconds.
    """
    return where(_core.open_stages())


def where(threads: Sequence[OpenThread]) -> Where:
    """The same of what `_core.open_stages` returned."""
    if not threads:
        return Where(None, "")
    inside = [thread for thread in threads if thread[3]]
    if not inside:
        return Where(max(thread[2] for thread in threads), "")
    process = os.getpid()  # its main thread has the same number
    _, _, step, names = max(
        inside, key=lambda thread: (thread[0] == process, thread[2], len(thread[3]))
    )
    return Where(step, "/".join(names))
