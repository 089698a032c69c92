"""Reports once, at the end of a process, timers whose data was never written: `GlobalLogger.setup`
was not called and no figures were read, or all rows have step 0.
"""

from __future__ import annotations

import os
import weakref
from typing import TYPE_CHECKING

from ... import _core
from ...core.process_end import call_at_end
from ...core.warnings import warn_once

if TYPE_CHECKING:
    from .timers import MyTimer


_timers: weakref.WeakSet[MyTimer] = weakref.WeakSet()
_pid = os.getpid()
_read = False


def watch(timer: MyTimer) -> None:
    """Has the timer looked at when the process ends."""
    global _pid
    if _pid != os.getpid():
        _timers.clear()
        _pid = os.getpid()
    _timers.add(timer)
    call_at_end(_say)


def has_been_read() -> None:
    """Somebody has taken the figures of timers in this process: their data was used."""
    global _read
    _read = True


def _say() -> None:
    if _pid != os.getpid():
        return
    used = [timer for timer in _timers if timer.totals()]
    if not used:
        return
    names = ", ".join(sorted({repr(timer.tag) for timer in used}))
    from ..log.logger import GlobalLogger

    if not GlobalLogger().was_set_up:
        if not _read and _core.output_state()["kind"] == "memory":
            warn_once(
                "timer:unwritten",
                f"stages of the timer {names} were recorded but never written: "
                'set the directory with GlobalLogger().setup("logs")',
            )
    elif all(timer.current_step == 0 and _repeats(timer) for timer in used):
        warn_once(
            "timer:step",
            f"all rows of the timer {names} have step 0: call timer.set_step(step) in each "
            "iteration",
        )


def _repeats(timer: MyTimer) -> bool:
    """Whether an outermost stage ran more than once."""
    return any(len(names) == 1 and count > 1 for names, count, *_ in timer.totals())
