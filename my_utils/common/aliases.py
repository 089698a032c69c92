"""Old names of methods and parameters, which work as before."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any, TypeVar, cast

__all__ = ["renamed_attribute", "renamed_parameters", "renamed_state", "warn_renamed"]

_F = TypeVar("_F", bound=Callable[..., Any])
_warned: set[str] = set()


def warn_renamed(old: str, new: str, stacklevel: int = 3) -> None:
    """A DeprecationWarning that `old` is called `new`, once in a process.

    stacklevel: as of `warnings.warn`; 3 is the caller of the function that calls this.
    """
    if old in _warned:
        return
    _warned.add(old)
    warnings.warn(f"{old} is called {new} now", DeprecationWarning, stacklevel)


def renamed_parameters(*, silent: bool = False, **names: str) -> Callable[[_F], _F]:
    """A decorator: the function also takes parameters by their old names.

    names: old name = new name. silent: the old names are promised to users and do not warn.

    TypeError where a call gives both names. The old names stand in the function's `__renamed__`.

    >>> @renamed_parameters(silent=True, timeout="timeout_s")
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
                if not silent:
                    warn_renamed(f"{called}({old}=…)", f"{new}=…")
                kwargs[new] = kwargs.pop(old)
            return function(*args, **kwargs)

        renamed = {**getattr(function, "__renamed__", {}), **names}
        wrapper.__renamed__ = renamed  # type: ignore[attr-defined]
        return cast(_F, wrapper)

    return decorate


def renamed_attribute(old: str, new: str) -> Any:
    """A property that reads and sets the attribute `new`. old: the class and its own name.

    >>> class Writer:
    ...     def __init__(self): self.output = "there"
    ...     folder = renamed_attribute("Writer.folder", "output")
    """

    def read(self: object) -> Any:
        warn_renamed(old, new)
        return getattr(self, new)

    def write(self: object, value: object) -> None:
        warn_renamed(old, new)
        setattr(self, new, value)

    return property(read, write, doc=f"The name of `{new}` from before.")


def renamed_state(**names: str) -> Callable[[Any, dict[str, Any]], None]:
    """A `__setstate__` that reads pickles with the old names of attributes.

    names: old name = new name.

    >>> class Writer:
    ...     __setstate__ = renamed_state(folder="output")
    >>> writer = Writer()
    >>> writer.__setstate__({"folder": "there", "rank": 3})
    >>> vars(writer)
    {'output': 'there', 'rank': 3}
    """

    def restore(self: object, state: dict[str, Any]) -> None:
        vars(self).update({names.get(name, name): value for name, value in state.items()})

    return restore
