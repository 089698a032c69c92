"""The arguments of a public signature as one object, each with its check.

>>> @dataclasses.dataclass
... class WaitOptions(Options):
...     every: int = option(1, an_int(1))
...     mode: str = option("op", one_of("op", "step"))
>>> def wait(every=1, mode="op"):
...     return WaitOptions.of(locals())
>>> wait(every=3)
WaitOptions(every=3, mode='op')
>>> wait(mode="never")
Traceback (most recent call last):
    ...
ValueError: mode must be one of 'op', 'step', not 'never'
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, Self

from .arguments import check_choice, check_int

Check = Callable[[str, Any], Any]
"""Takes the argument's name and value, and returns what the value stands for, or raises."""


def option(default: Any, check: Check | None = None) -> Any:
    """A field with its check; without one the value is taken as it is."""
    return dataclasses.field(default=default, metadata={"check": check})


@dataclasses.dataclass
class Options:
    """The base. A field has the name of its argument, and after the checks the type that its
    annotation says. Where a signature lacks an argument, the field has its default."""

    def __post_init__(self) -> None:
        for one in dataclasses.fields(self):
            check = one.metadata["check"]
            if check is not None:
                setattr(self, one.name, check(one.name, getattr(self, one.name)))

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Self:
        """given: the `locals()` of the function that has the signature, at its begin."""
        names = [one.name for one in dataclasses.fields(cls) if one.name in given]
        return cls(**{name: given[name] for name in names})


def or_none(check: Check) -> Check:
    return lambda name, value: None if value is None else check(name, value)


def one_of(*allowed: str) -> Check:
    return lambda name, value: check_choice(name, value, allowed)


def an_int(least: int | None = None, *, or_none: bool = False) -> Check:
    def check(name: str, value: object) -> int | None:
        if or_none and value is None:
            return None
        return check_int(name, value, least, or_none=or_none)

    return check
