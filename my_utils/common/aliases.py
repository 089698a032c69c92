"""Names of parameters that users know from elsewhere, which work as the parameter itself."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar, cast

_F = TypeVar("_F", bound=Callable[..., Any])


def renamed_parameters(**names: str) -> Callable[[_F], _F]:
    """A decorator: the function also takes parameters by these names.

    names: their name = the parameter. TypeError if a call gives both. The names are in the
    function's `__renamed__`.

    >>> @renamed_parameters(timeout="timeout_s")
    ... def wait(timeout_s=1.0):
    ...     return timeout_s
    >>> wait(timeout=2.0), wait(3.0)
    (2.0, 3.0)
    >>> wait(timeout=2.0, timeout_s=3.0)
    Traceback (most recent call last):
    TypeError: wait() got timeout_s and timeout, which are the same
    """

    def decorate(function: _F) -> _F:
        called = function.__qualname__.removesuffix(".__init__")

        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            for old in names.keys() & kwargs.keys():
                new = names[old]
                if new in kwargs:
                    raise TypeError(f"{called}() got {new} and {old}, which are the same")
                kwargs[new] = kwargs.pop(old)
            return function(*args, **kwargs)

        wrapper.__renamed__ = {**getattr(function, "__renamed__", {}), **names}  # type: ignore[attr-defined]
        return cast(_F, wrapper)

    return decorate
