"""Stages of functions, coroutines and generators: the part of a Stage outside the hot path.

A plain function runs inside its stage on the calling thread's stack. Coroutines, generators and
`async with` are suspended in the middle, and other code runs before they end. So they become
asynchronous events, each with a separate id, and do not use the thread's stack.
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, ParamSpec, TypeVar

from ... import _core
from ...core.run_files.row_metadata import encoded_word
from ...core.wrapping import Scope, decorate

_P = ParamSpec("_P")
_T = TypeVar("_T")
_Function = Callable[..., Any]

# Ids of asynchronous events: unique in a set of files, over restarts and forks. A run cannot make
# a million a second for long, so microseconds are a base that a later process does not reach.
_ids = itertools.count(time.time_ns() // 1000)


def _fresh_ids_in_child() -> None:
    global _ids
    _ids = itertools.count((time.time_ns() // 1000) ^ (os.getpid() & 0xFF))


os.register_at_fork(after_in_child=_fresh_ids_in_child)


class _Span(Scope):
    """One run of an asynchronous stage."""

    __slots__ = ("_metadata", "_stage")

    def __init__(self, stage: _core.Stage) -> None:
        self._stage = stage
        tag = stage.timer.tag
        self._metadata = f"id={next(_ids)}" + (f",tag={encoded_word(tag)}" if tag else "")

    def __enter__(self) -> None:
        self._log("ASYNC_START")

    def __exit__(self, *exc: object) -> None:
        self._log("ASYNC_END")

    def _log(self, event_type: str) -> None:
        stage = self._stage
        _core.log_event(stage.name, event_type, stage.timer.current_step, self._metadata)


# --- async with ---

# The stages that the running task has entered and not left, outermost first. A new task begins with
# a copy of its creator's; an entry that is not open belongs to another task.
_entered: ContextVar[tuple[tuple[_core.Stage, _Span], ...]] = ContextVar("_entered", default=())

# The same for all tasks, for a stage that is left in another task than it was entered in.
_open: dict[_core.Stage, list[_Span]] = {}


async def enter_async(stage: _core.Stage) -> _core.Stage:
    span = _Span(stage)
    _entered.set((*_entered.get(), (stage, span)))
    _open.setdefault(stage, []).append(span)
    span.__enter__()
    return stage


async def exit_async(stage: _core.Stage) -> None:
    span = _take_entered(stage) or _take_open(stage, None)
    if span is not None:
        span.__exit__()


def _take_entered(stage: _core.Stage) -> _Span | None:
    entries = _entered.get()
    for index in range(len(entries) - 1, -1, -1):
        entry, span = entries[index]
        if entry is stage and _take_open(stage, span) is not None:
            _entered.set(entries[:index] + entries[index + 1 :])
            return span
    return None


def _take_open(stage: _core.Stage, wanted: _Span | None) -> _Span | None:
    spans = _open.get(stage)
    if spans is None or (wanted is not None and wanted not in spans):
        return None
    span = spans.pop() if wanted is None else wanted
    if wanted is not None:
        spans.remove(wanted)
    if not spans:
        _open.pop(stage, None)
    return span


# --- decorators ---


def wrap(stage: _core.Stage, function: Any) -> Any:
    """The function inside the stage, whatever kind of function it is; see `_wrapping.decorate`.

    A plain call is a stage of its thread. A coroutine's, a generator's and a context manager's is
    an asynchronous event from its first statement to its end, waiting and consumer included.
    """

    def plain(function: _Function) -> _Function:
        return _plain(stage, function)

    def span(*_: object) -> _Span:
        return _Span(stage)

    return decorate(function, span, decorator=f"time_stage({stage.name!r})", plain=plain)


def _plain(stage: _core.Stage, function: Callable[_P, _T]) -> Callable[_P, _T]:
    def timed(*args: _P.args, **kwargs: _P.kwargs) -> _T:
        with stage:
            return function(*args, **kwargs)

    return timed
