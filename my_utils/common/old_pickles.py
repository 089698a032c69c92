"""Pickles of earlier versions, whose classes had fewer fields."""

from __future__ import annotations

from dataclasses import MISSING, Field, fields
from typing import Any, TypeVar

__all__ = ["fills_old_pickles"]

_T = TypeVar("_T", bound=type)


def fills_old_pickles(cls: _T) -> _T:
    """For a dataclass with slots that got fields: pickles without them load with their defaults.

    A frozen class keeps its values in the order of its fields, so there new ones come last.

    >>> from dataclasses import dataclass
    >>> @fills_old_pickles
    ... @dataclass(slots=True)
    ... class Call:
    ...     name: str
    ...     depth: int = 0
    >>> old = Call.__new__(Call)
    >>> old.__setstate__((None, {"name": "load"}))
    >>> old
    Call(name='load', depth=0)
    """

    def set_state(self: Any, state: Any) -> None:
        given = _by_name(cls, state)
        for field in fields(cls):
            value = given[field.name] if field.name in given else _default(field)
            object.__setattr__(self, field.name, value)

    cls.__setstate__ = set_state  # type: ignore[attr-defined]
    return cls


def _by_name(cls: type, state: Any) -> dict[str, Any]:
    if isinstance(state, list):  # of a frozen class
        return dict(zip((field.name for field in fields(cls)), state, strict=False))
    parts = state if isinstance(state, tuple) else (state,)
    return {name: value for part in parts for name, value in (part or {}).items()}


def _default(field: Field[Any]) -> Any:
    if field.default_factory is not MISSING:
        return field.default_factory()
    if field.default is MISSING:
        raise ValueError(f"the pickle lacks {field.name}")
    return field.default
