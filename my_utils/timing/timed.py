"""Functions whose calls are timed: what timer_wrap and the blocks of timer() put round them."""

from __future__ import annotations

import time
from typing import Any

from .. import _core
from ..common.wrapping import Scope, decorate

__all__ = ["timed"]

_Recorders = tuple[_core.TimeRecorder, ...]


def timed(function: Any, name: str, recorders: _Recorders | None = None) -> Any:
    """The function, timed under `name` into the recorders, None: those enabled at the call.

    Takes what `_wrapping.decorate` takes. The time of a coroutine is from its start to its end,
    waiting included; that of a generator is of its own turns alone, their sum one time a run.
    """
    return decorate(
        function,
        lambda *_: _Timed(name, recorders),
        decorator="timer_wrap",
        plain=lambda function: _core.TimedFunction(function, name, recorders),
    )


class _Turns:
    """Adds up the time of turns, each in a `with`, in nanoseconds."""

    __slots__ = ("_began", "ns")

    def __init__(self) -> None:
        self.ns = 0

    def __enter__(self) -> None:
        self._began = time.monotonic_ns()

    def __exit__(self, *exc: object) -> None:
        self.ns += time.monotonic_ns() - self._began


class _Timed(Scope):
    """One call; the time of its turns is recorded at its end."""

    __slots__ = ("_name", "_recorders", "turn")

    turn: _Turns

    def __init__(self, name: str, recorders: _Recorders | None) -> None:
        self._name = name
        self._recorders = _core.enabled_recorders() if recorders is None else recorders
        self.turn = _Turns()

    def __exit__(self, *exc: object) -> None:
        for recorder in self._recorders:
            recorder.add(self._name, self.turn.ns)
