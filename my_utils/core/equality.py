"""Whether two results are equal that hold arrays and tables. `==` compares those element by
element, and its result has no truth value."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


def same_fields(one: DataclassInstance, other: object) -> bool:
    """Whether both are of the same dataclass, and all fields equal; NaNs in them equal each other.

    >>> import numpy
    >>> @dataclasses.dataclass
    ... class Result:
    ...     values: numpy.ndarray
    >>> left, right = Result(numpy.array([1.0, float("nan")])), Result(numpy.zeros(2))
    >>> same_fields(left, Result(left.values.copy())), same_fields(left, right)
    (True, False)
    """
    return type(one) is type(other) and all(
        _same(getattr(one, field.name), getattr(other, field.name))
        for field in dataclasses.fields(one)
        if field.compare
    )


def _same(one: Any, other: Any) -> bool:
    import numpy as np

    if isinstance(one, np.ndarray):
        return isinstance(other, np.ndarray) and np.array_equal(
            one, other, equal_nan=one.dtype.kind in "fc" and other.dtype.kind in "fc"
        )
    if hasattr(one, "equals"):  # a table of pandas
        return type(one) is type(other) and bool(one.equals(other))
    return bool(one == other)
