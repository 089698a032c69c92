"""The Python stacks of this process."""

from __future__ import annotations

import os

from ... import _core
from .record import Thread, read_record


def own_stacks() -> list[Thread]:
    """The Python stacks of all threads of this process, the first thread first.

    They are read by addresses, without the interpreter's lock: threads run on meanwhile. Values of
    locals are not read. RuntimeError if `why_off` says why not. Thread-safe.

    >>> def work():
    ...     return own_stacks()[0].frames
    >>> frames = work()
    >>> [frame.function for frame in frames[:2]]
    ['own_stacks', 'work']
    """
    record = read_record(_core.read_stacks())
    record.pid = os.getpid()
    return record.threads()


def why_off() -> str:
    """Why stacks of this process cannot be read; "" when they can."""
    return _core.stacks_off()
