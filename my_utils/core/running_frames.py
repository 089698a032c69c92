"""Whether a call still runs in this thread.

>>> import sys
>>> def finished():
...     return sys._getframe()
>>> is_running(sys._getframe()), is_running(finished())
(True, False)
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType


def is_running(frame: FrameType, innermost: FrameType | None = None) -> bool:
    """Whether the frame is among the callers; quick where it is one of the innermost.

    innermost: where the search begins; by default with the caller.
    """
    caller: FrameType | None = innermost or sys._getframe(1)
    while caller is not None and caller is not frame:
        caller = caller.f_back
    return caller is not None
