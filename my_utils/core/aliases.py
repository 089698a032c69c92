"""Names of parameters that users know from elsewhere, which work as the parameter itself."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, TypeVar, cast

_F = TypeVar("_F", bound=Callable[..., Any])


def renamed_parameters(
    fixed: Mapping[str, tuple[Any, str]] | None = None, /, **names: str
) -> Callable[[_F], _F]:
    """A decorator: the function also takes parameters by these names.

    names: their name = the parameter. TypeError if a call gives both. The names are in the
    function's `__renamed__`.
    fixed: parameters with one value here, by their name: the value, and what to use for another
    one, which the TypeError says.

    >>> @renamed_parameters({"retry": (False, "call it again")}, timeout="timeout_s")
    ... def wait(timeout_s=1.0):
    ...     return timeout_s
    >>> wait(timeout=2.0, retry=False), wait(3.0)
    (2.0, 3.0)
    >>> wait(timeout=2.0, timeout_s=3.0)
    Traceback (most recent call last):
    TypeError: wait() got timeout_s and timeout, which are the same
    >>> wait(retry=True)
    Traceback (most recent call last):
    TypeError: wait() takes only retry=False: call it again
    """
    only = fixed or {}

    def decorate(function: _F) -> _F:
        called = function.__qualname__.removesuffix(".__init__")
        code: Any = function.__code__
        positional = code.co_varnames[: code.co_argcount]

        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            for old in [name for name in kwargs if name in names]:
                new = names[old]
                if new in kwargs or new in positional[: len(args)]:
                    raise TypeError(f"{called}() got {new} and {old}, which are the same")
                kwargs[new] = kwargs.pop(old)
            for name in [name for name in kwargs if name in only]:
                value, text = only[name]
                if kwargs.pop(name) != value:
                    raise TypeError(f"{called}() takes only {name}={value!r}: {text}")
            return function(*args, **kwargs)

        wrapper.__renamed__ = {**getattr(function, "__renamed__", {}), **names}  # type: ignore[attr-defined]
        return cast(_F, wrapper)

    return decorate
