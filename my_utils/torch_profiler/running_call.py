"""Tells whether a call has ended: whether its frame has left its thread's stack.

>>> def begin():
...     return RunningCall()
>>> def outer():
...     call = begin()
...     return call, call.over()
>>> call, early = outer()
>>> early, call.over()
(False, True)
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from types import FrameType


class RunningCall:
    """The call that called the function which makes this; of its callers the first that is not in
    a file that `skip` names.

    It holds no frame, which would keep the variables of the call alive, but where the frame stands.
    Any thread may ask.
    """

    def __init__(self, skip: Callable[[str], bool] = lambda file: False) -> None:
        frame: FrameType | None = sys._getframe(2)
        while frame is not None and skip(frame.f_code.co_filename):
            frame = frame.f_back
        self._thread = threading.get_ident()
        self._mark = None if frame is None else _mark_of(frame, _depth(frame))

    def over(self) -> bool:
        """Whether the call has ended, by returning or by an exception. False if there is no such
        call."""
        if self._mark is None:
            return False
        frame = sys._current_frames().get(self._thread)
        below = 0 if frame is None else _depth(frame) - self._mark[0]
        while frame is not None and below > 0:
            frame = frame.f_back
            below -= 1
        return frame is None or below < 0 or _mark_of(frame, self._mark[0]) != self._mark


def _depth(frame: FrameType | None) -> int:
    count = 0
    while frame is not None:
        count += 1
        frame = frame.f_back
    return count


def _mark_of(frame: FrameType, depth: int) -> tuple[int, int, int]:
    """What no other frame of the thread has while this one is there."""
    return depth, id(frame), id(frame.f_code)
