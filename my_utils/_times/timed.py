"""Functions whose calls are timed: what timer_wrap and the blocks of timer() put round them."""

from __future__ import annotations

import functools
import inspect
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from typing import Any, ParamSpec, TypeVar

from .. import _core

__all__ = ["timed"]

_P = ParamSpec("_P")
_T = TypeVar("_T")
_Function = Callable[..., Any]
_Recorders = tuple[_core.TimeRecorder, ...]


def timed(function: Any, name: str, recorders: _Recorders | None = None) -> Any:
    """The function, timed under `name` into the recorders, None: those enabled at the call.

    Takes plain functions and methods, coroutine functions, generator functions and asynchronous
    ones, static and class methods, and any callable object. TypeError for a class (decorate its
    methods) and for what cannot be called.
    """
    if isinstance(function, (staticmethod, classmethod)):
        return type(function)(timed(function.__func__, name, recorders))
    if inspect.isclass(function):
        raise TypeError(f"the class {function.__qualname__} cannot be timed; decorate its methods")
    if not callable(function):
        raise TypeError(f"timer_wrap decorates functions, not {function!r:.100}")
    wrapper = _wrapper_of(function, name, recorders)
    if inspect.isroutine(function):
        return functools.wraps(function)(wrapper)
    # An object may keep anything in its __dict__ (a torch module: its parameters), so only the
    # names are taken.
    return functools.wraps(function, updated=())(wrapper)


def _wrapper_of(function: _Function, name: str, recorders: _Recorders | None) -> _Function:
    called = function if inspect.isroutine(function) else type(function).__call__
    for test, make in (
        (inspect.iscoroutinefunction, _coroutine),
        (inspect.isasyncgenfunction, _async_generator),
        (inspect.isgeneratorfunction, _generator),
    ):
        if test(function) or test(called):
            return make(function, name, recorders)
    return _core.TimedFunction(function, name, recorders)


class _Turns:
    """The time of a generator's own code: `with` round each of its turns, the sum at the end."""

    __slots__ = ("_began", "_name", "_ns", "_recorders")

    def __init__(self, name: str, recorders: _Recorders | None) -> None:
        self._name = name
        self._recorders = _core.enabled_recorders() if recorders is None else recorders
        self._ns = 0

    def __enter__(self) -> None:
        self._began = time.monotonic_ns()

    def __exit__(self, *exc: object) -> None:
        self._ns += time.monotonic_ns() - self._began

    def end(self) -> None:
        for recorder in self._recorders:
            recorder.add(self._name, self._ns)


def _coroutine(
    function: Callable[_P, Awaitable[_T]], name: str, recorders: _Recorders | None
) -> Callable[_P, Awaitable[_T]]:
    async def wrapper(*args: _P.args, **kwargs: _P.kwargs) -> _T:
        began = time.monotonic_ns()
        into = _core.enabled_recorders() if recorders is None else recorders
        try:
            return await function(*args, **kwargs)
        finally:
            for recorder in into:
                recorder.add(name, time.monotonic_ns() - began)

    return wrapper


def _generator(
    function: Callable[_P, Generator[Any, Any, Any]], name: str, recorders: _Recorders | None
) -> Callable[_P, Generator[Any, Any, Any]]:
    def wrapper(*args: _P.args, **kwargs: _P.kwargs) -> Generator[Any, Any, Any]:
        turns = _Turns(name, recorders)
        try:
            with turns:
                inner = function(*args, **kwargs)
            resume: Callable[[], Any] = functools.partial(next, inner)
            while True:
                try:
                    with turns:
                        value = resume()
                except StopIteration as stop:
                    return stop.value
                try:
                    sent = yield value
                except GeneratorExit:
                    with turns:
                        inner.close()
                    raise
                except BaseException as error:
                    resume = functools.partial(inner.throw, error)
                else:
                    resume = functools.partial(inner.send, sent)
        finally:
            turns.end()

    return wrapper


def _async_generator(
    function: Callable[_P, AsyncGenerator[Any, Any]], name: str, recorders: _Recorders | None
) -> Callable[_P, AsyncGenerator[Any, Any]]:
    async def wrapper(*args: _P.args, **kwargs: _P.kwargs) -> AsyncGenerator[Any, Any]:
        turns = _Turns(name, recorders)
        try:
            with turns:
                inner = function(*args, **kwargs)
            resume: Callable[[], Awaitable[Any]] = inner.__anext__
            while True:
                try:
                    with turns:
                        value = await resume()
                except StopAsyncIteration:
                    return
                try:
                    sent = yield value
                except GeneratorExit:
                    with turns:
                        await inner.aclose()
                    raise
                except BaseException as error:
                    resume = functools.partial(inner.athrow, error)
                else:
                    resume = functools.partial(inner.asend, sent)
        finally:
            turns.end()

    return wrapper
