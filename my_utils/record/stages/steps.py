"""Which iterations a report is about: a step, a range, a collection, text or a callable."""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection
from typing import SupportsIndex

from ...core.ranges import step_slice

StepFilter = SupportsIndex | range | slice | str | Collection[int] | Callable[[int], object]
"""What `iteration_filter` may be; text such as "10:20" is half open, as slices are."""

_ALLOWED = (
    'an int, a range, a slice, a set or list of ints, text such as "10:20" or "3,10:20", '
    "or a callable that takes the step"
)


def compile_steps(given: StepFilter) -> tuple[Callable[[int], bool], str]:
    """Returns the test for one step, and the filter as text.

    Raises TypeError or ValueError naming `iteration_filter`.

    >>> test, text = compile_steps("3,10:12")
    >>> [step for step in range(20) if test(step)], text
    ([3, 10, 11], '3,10:12')
    >>> test, text = compile_steps(slice(None, 5, 2))
    >>> [step for step in range(20) if test(step)], text
    ([0, 2, 4], ':5:2')
    """
    if isinstance(given, bool):
        raise TypeError(f"iteration_filter must be {_ALLOWED}, not a bool")
    if isinstance(given, str):
        tests = [_from_part(part.strip(), given) for part in given.split(",")]
        return lambda step: any(test(step) for test in tests), given
    if isinstance(given, slice):
        return _from_slice(given)
    if isinstance(given, range):
        return given.__contains__, repr(given)
    if isinstance(given, Collection):
        steps = frozenset(_as_step(step) for step in given)
        return steps.__contains__, ",".join(map(str, sorted(steps)))
    if callable(given):
        chosen: Callable[[int], object] = given
        return lambda step: bool(chosen(step)), getattr(given, "__qualname__", repr(given))
    wanted = _as_step(given)
    return wanted.__eq__, str(wanted)


def _as_step(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, SupportsIndex):
        kind = type(value).__name__
        raise TypeError(f"iteration_filter must be {_ALLOWED}, not {kind}")
    return operator.index(value)


def _from_slice(given: slice) -> tuple[Callable[[int], bool], str]:
    start, stop, stride = (
        None if bound is None else _as_step(bound)
        for bound in (given.start, given.stop, given.step)
    )
    if stride is not None and stride < 1:
        raise ValueError(f"iteration_filter: the step of {given} must be 1 or more")

    def test(step: int) -> bool:
        if (start is not None and step < start) or (stop is not None and step >= stop):
            return False
        return stride is None or (step - (start or 0)) % stride == 0

    text = ":".join("" if bound is None else str(bound) for bound in (start, stop))
    return test, text if stride is None else f"{text}:{stride}"


def _from_part(part: str, whole: str) -> Callable[[int], bool]:
    found = step_slice(part)
    if found is None:
        raise ValueError(
            f'iteration_filter must be text such as "7", "10:20" or "3,10:20", not {whole!r}'
        )
    return _from_slice(found)[0]
