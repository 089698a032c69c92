"""Functions whose calls are timed: the wrappers of timer_wrap and timer().

A timed plain function is a new Python function, with the parameters of the one that it
calls. So whatever looks into functions (Ray, cloudpickle, torch.jit, torch.fx, Dynamo) finds one.
It reads one attribute of `_core.timing_switch`; where nothing is enabled it calls the function
itself, else through an object of C that measures:

    def load(path, *, size=4):
        if recording.on:
            return timed(path, size=size)
        return function(path, size=size)

The code is made for each function, as dataclasses make theirs: a wrapper with `*args, **kwargs`
costs three times as much.
"""

from __future__ import annotations

import time
import types
from collections.abc import Callable
from typing import Any

from ... import _core
from ...core.wrapping import Scope, decorate

_Recorders = tuple[_core.TimeRecorder, ...]

_VARARGS, _VARKEYWORDS = 0x04, 0x08  # of co_flags


def timed(function: Any, name: str, recorders: _Recorders | None = None) -> Any:
    """The function, timed under `name` into the recorders, None: those enabled at the call.

    Takes what `wrapping.decorate` takes. The time of a coroutine is from its start to its end,
    waiting included; that of a generator is the time of its turns only, their sum one time a run.
    """
    return decorate(
        function,
        lambda *_: _Timed(name, recorders),
        decorator="timer_wrap",
        plain=lambda function: _plain(function, name, recorders),
    )


def _plain(function: Callable[..., Any], name: str, recorders: _Recorders | None) -> Any:
    """A Python function round a plain one, without its names and annotations."""
    # A method, for CPython has a quicker way to call those of C than objects.
    measured = _core.TimedFunction(function, name, recorders).run
    # A block's own recorders record whatever is enabled.
    switch = _core.timing_switch if recorders is None else _ALWAYS
    # Of something else that can be called: as if it were `def function(*args, **kwargs)`.
    own = function if isinstance(function, types.FunctionType) else _anything
    code = own.__code__
    names = [
        _free(f"_{word}", (*code.co_freevars, *code.co_varnames))
        for word in ("function", "timed", "recording")
    ]
    inner = _inner_code(names, code)
    cells = dict(zip(code.co_freevars, own.__closure__ or (), strict=True))
    cells.update(zip(names, map(types.CellType, (function, measured, switch)), strict=True))
    wrapper = types.FunctionType(
        inner.replace(co_name=str(getattr(function, "__name__", type(function).__name__))),
        own.__globals__,
        argdefs=own.__defaults__,
        closure=tuple(cells[each] for each in inner.co_freevars),
    )
    wrapper.__kwdefaults__ = own.__kwdefaults__
    return wrapper


def _anything(*args: Any, **kwargs: Any) -> None:
    """The parameters of a callable that is not a Python function."""


class _Always:
    """A switch that is on."""

    __slots__ = ()
    on = True

    def __reduce__(self) -> str:
        return "_ALWAYS"


_ALWAYS = _Always()


def _signature(code: types.CodeType) -> tuple[str, str]:
    """The parameters of a function as they are after its name, without defaults, which are of the
    function; and the arguments of a call that passes them on."""
    positional = code.co_varnames[: code.co_argcount]
    ends = code.co_argcount + code.co_kwonlyargcount
    keywords = code.co_varnames[code.co_argcount : ends]
    more = list(code.co_varnames[ends:])
    parameters = list(positional)
    if code.co_posonlyargcount:
        parameters.insert(code.co_posonlyargcount, "/")
    arguments = list(positional)
    if code.co_flags & _VARARGS:
        parameters.append(f"*{more[0]}")
        arguments.append(f"*{more.pop(0)}")
    elif keywords:
        parameters.append("*")
    parameters += keywords
    arguments += [f"{each}={each}" for each in keywords]
    if code.co_flags & _VARKEYWORDS:
        parameters.append(f"**{more[0]}")
        arguments.append(f"**{more[0]}")
    return ", ".join(parameters), ", ".join(arguments)


def _free(name: str, taken: tuple[str, ...]) -> str:
    while name in taken:
        name += "_"
    return name


def _inner_code(names: list[str], code: types.CodeType) -> types.CodeType:
    """The code of the wrapper of a function that has `code`. Its free variables are `names` and
    those of the function: torch.jit looks for what the function's source names in the wrapper."""
    function, timed, recording = names
    parameters, arguments = _signature(code)
    captured = code.co_freevars
    mentioned = f"        if 0: {', '.join(captured)}\n" if captured else ""
    source = (
        f"def outer({', '.join((*names, *captured))}):\n"
        f"    def inner({parameters}):\n"
        f"{mentioned}"
        f"        if {recording}.on: return {timed}({arguments})\n"
        f"        return {function}({arguments})\n"
    )
    module = compile(source, "<timer_wrap>", "exec", dont_inherit=True)
    return _code_in(_code_in(module))


def _code_in(code: types.CodeType) -> types.CodeType:
    """The one function that a piece of code makes."""
    return next(each for each in code.co_consts if isinstance(each, types.CodeType))


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
