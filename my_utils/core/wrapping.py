"""Decorates a callable of any kind: one function for all decorators of this package.

>>> class Loud(Scope):
...     def __init__(self, function, args, kwargs): print(f"{function.__name__}{args}")
...     def __enter__(self): print("begin")
...     def __exit__(self, *exc): print("end")
>>> @functools.partial(decorate, scope=Loud, decorator="@loud")
... def count(n):
...     yield from range(n)
>>> inspect.isgeneratorfunction(count), list(count(2))
count(2,)
begin
end
(True, [0, 1])

What is decorated keeps its kind, its name, its signature and `__wrapped__`, and is pickled by its
name as before. All that is sent, thrown, returned or raised goes through unchanged.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import types
from collections.abc import AsyncGenerator, Callable, Generator
from typing import Any

_Function = Callable[..., Any]

_NO_TURN = contextlib.nullcontext()


class Scope:
    """A context manager around one call: from the first statement of the function to its end, also
    by an exception.

    A call that waits or yields in the middle is still one call. That of a coroutine includes its
    waits, and that of a generator includes the work of its consumer. The call of a generator begins
    with its first item, not when it is made. A generator that never begins has no scope.

    turn: entered around each time span in which the function's own code runs. A plain function and
        a coroutine have one turn, the whole call. A generator has one for each item, and one that
        ends it. A decorator that needs the time of a generator without its consumer uses turns.
        The call and the turns of this base class do nothing.
    """

    __slots__ = ()

    turn: contextlib.AbstractContextManager[object] = _NO_TURN

    def __enter__(self) -> object:
        return self

    def __exit__(self, *exc: Any) -> None:
        return None


_MakeScope = Callable[[_Function, tuple[Any, ...], dict[str, Any]], Scope]


def decorate(
    function: Any,
    scope: _MakeScope,
    *,
    decorator: str,
    plain: Callable[[_Function], _Function] | None = None,
) -> Any:
    """The function with a scope round each of its calls.

    function: a function or a method of any kind (plain, coroutine, generator, asynchronous
        generator), one of `contextlib.contextmanager` or `asynccontextmanager`, whose call lasts
        from its entry to its exit, a `staticmethod` or `classmethod`, a `functools.partial`, or an
        object that can be called.
    scope: called with the function, the arguments and the keywords of each call.
    decorator: what errors name, such as "@profiler(...)".
    plain: wraps plain functions instead, where calls are many and a scope would cost too much.

    TypeError for a class, whose methods can be decorated instead, and for what cannot be called.
    """
    if isinstance(function, (staticmethod, classmethod)):
        inner = decorate(function.__func__, scope, decorator=decorator, plain=plain)
        return type(function)(inner)
    if inspect.isclass(function):
        raise TypeError(
            f"{decorator} cannot decorate the class {function.__qualname__}; decorate its methods"
        )
    if not callable(function):
        raise TypeError(f"{decorator} decorates functions, not {function!r:.100}")
    made = _made_by_contextlib(function)
    if made is None:
        wrapper = _wrapper(function, scope, plain or functools.partial(_plain, scope=scope))
        return _with_names_of(function, wrapper)
    maker, generator_function = made
    inner = decorate(generator_function, scope, decorator=decorator)
    managed = _with_names_of(function, maker(inner))
    managed.__wrapped__ = inner  # as contextlib has it, so that it can be decorated again
    return managed


def _with_names_of(function: Any, wrapper: Any) -> Any:
    # An object may keep anything in its __dict__ (a torch module: its parameters), so only the
    # names are taken.
    updated = ("__dict__",) if inspect.isroutine(function) else ()
    return functools.update_wrapper(wrapper, function, updated=updated)


def _wrapper(
    function: _Function, scope: _MakeScope, plain: Callable[[_Function], _Function]
) -> _Function:
    bare = function
    while isinstance(bare, functools.partial):
        bare = bare.func
    called = bare if inspect.isroutine(bare) else type(bare).__call__
    for test, wrap in (
        (inspect.iscoroutinefunction, _coroutine),
        (inspect.isasyncgenfunction, _async_generator),
        (inspect.isgeneratorfunction, _generator),
    ):
        if test(bare) or test(called):
            wrapper = wrap(function, scope)
            if _is_awaited(called):
                types.coroutine(wrapper)  # marks it, and returns it
            return wrapper
    return plain(function)


def _is_awaited(function: _Function) -> bool:
    """Whether it is a generator function that `types.coroutine` made one for `await`."""
    flags = getattr(getattr(function, "__code__", None), "co_flags", 0)
    return bool(flags & inspect.CO_ITERABLE_COROUTINE)


# --- one function for each kind ---


def _plain(function: _Function, scope: _MakeScope) -> _Function:
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        call = scope(function, args, kwargs)
        with call, call.turn:
            return function(*args, **kwargs)

    return wrapper


def _coroutine(function: _Function, scope: _MakeScope) -> _Function:
    async def wrapper(*args: Any, **kwargs: Any) -> Any:
        call = scope(function, args, kwargs)
        with call, call.turn:
            return await function(*args, **kwargs)

    return wrapper


def _generator(function: _Function, scope: _MakeScope) -> _Function:
    def wrapper(*args: Any, **kwargs: Any) -> Generator[Any, Any, Any]:
        call = scope(function, args, kwargs)
        with call:
            if call.turn is _NO_TURN:
                return (yield from function(*args, **kwargs))
            return (yield from _in_turns(function, args, kwargs, call.turn))

    return wrapper


def _in_turns(
    function: _Function,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    turn: contextlib.AbstractContextManager[object],
) -> Generator[Any, Any, Any]:
    """As `yield from function(...)`, each turn within `turn`. Keeps no references to items or
    exceptions: an item may be a large batch, and an exception holds its frames."""
    with turn:
        inner = function(*args, **kwargs)
    resume, given = inner.send, None
    while True:
        try:
            with turn:
                items = [resume(given)]
        except StopIteration as stop:
            return stop.value
        given = None
        try:
            given = yield items.pop()
            resume = inner.send
        except BaseException as error:
            resume, given = inner.throw, error


def _async_generator(function: _Function, scope: _MakeScope) -> _Function:
    async def wrapper(*args: Any, **kwargs: Any) -> AsyncGenerator[Any, Any]:
        call = scope(function, args, kwargs)
        with call:
            with call.turn:
                inner = function(*args, **kwargs)
            resume, given = inner.asend, None
            while True:
                try:
                    with call.turn:
                        items = [await resume(given)]
                except StopAsyncIteration:
                    return
                given = None
                try:
                    given = yield items.pop()
                    resume = inner.asend
                except BaseException as error:
                    resume, given = inner.athrow, error

    return wrapper


# --- functions of contextlib ---


def _code_of(maker: Callable[..., Any]) -> types.CodeType:
    """The code that all functions have which `maker` made."""
    code: types.CodeType = maker(lambda: None).__code__
    return code


_MAKERS: dict[object, Callable[..., Any]] = {
    _code_of(contextlib.contextmanager): contextlib.contextmanager,
    _code_of(contextlib.asynccontextmanager): contextlib.asynccontextmanager,
}


def _made_by_contextlib(function: Any) -> tuple[Callable[..., Any], _Function] | None:
    """What made the function of a generator function, and that; None for any other."""
    if isinstance(function, functools.partial):
        made = _made_by_contextlib(function.func)
        if made is None:
            return None
        return made[0], functools.partial(made[1], *function.args, **function.keywords)
    if inspect.ismethod(function):
        made = _made_by_contextlib(function.__func__)
        return made and (made[0], types.MethodType(made[1], function.__self__))
    maker = _MAKERS.get(getattr(function, "__code__", None))
    return None if maker is None else (maker, function.__wrapped__)
