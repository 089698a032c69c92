"""Exceptions that a program's own signal handlers raise in whatever runs at the moment."""

from __future__ import annotations

import signal
import traceback


def is_of_a_signal(error: BaseException) -> bool:
    """Whether a signal handler of the script raised it, as one of a timeout does: it interrupts
    what runs at the moment, and is the training's."""
    handlers = {
        getattr(signal.getsignal(number), "__code__", None) for number in signal.valid_signals()
    }
    frames = traceback.walk_tb(error.__traceback__)
    return any(frame.f_code in handlers for frame, _ in frames)
