"""One warning for each kind of problem in a process. Repetitions are counted.

Training continues when a disk is full or a stage is stopped twice, and one warning a step would
flood the log. So each kind is reported once, through the logger `my_utils`, and counted from then
on. All functions are thread-safe. A forked child counts from zero.

>>> warn_once("example", "the disk is full")
True
>>> warn_once("example", "the disk is full")
False
>>> counts()["example"]
2
>>> forget("example")
"""

from __future__ import annotations

import logging
import os
import threading

from .. import _core

_logger = logging.getLogger("my_utils")
# Reentrant: a signal handler may warn while the interrupted thread holds the lock.
_lock = threading.RLock()
_counts: dict[str, int] = {}
_told: dict[str, set[str]] = {}  # the names of the loggers through which a kind was reported


def warn_once(kind: str, message: str, logger: logging.Logger | None = None) -> bool:
    """Warns of `kind` unless this process has done so; returns whether it did.

    `kind` names the trouble for `counts()` and is not shown. A logger of the user's own is given
    each kind once, too, whatever other loggers were given.
    """
    chosen = _logger if logger is None else logger
    with _lock:
        _counts[kind] = _counts.get(kind, 0) + 1
        told = _told.setdefault(kind, set())
        name = str(getattr(chosen, "name", ""))
        if name in told:
            return False
        told.add(name)
    # Outside the lock: a handler may itself run into trouble and come back here.
    chosen.warning("%s", message)
    return True


def counts() -> dict[str, int]:
    """How often each kind of trouble occurred in this process.

    The C part has its own counts, see `_core.troubles()`. Here its kinds are counted once only.
    """
    with _lock:
        return dict(_counts)


def forget(kind: str) -> None:
    """Lets `kind` warn again, for use after its cause was repaired."""
    with _lock:
        _counts.pop(kind, None)
        _told.pop(kind, None)


def _start_anew_in_child() -> None:
    global _lock
    _lock = threading.RLock()
    _counts.clear()
    _told.clear()
    _core.set_warning_hook(warn_once)  # the C part reports anew, too


os.register_at_fork(after_in_child=_start_anew_in_child)
_core.set_warning_hook(warn_once)
