"""Which variants of a slow test the gate runs: the others are left to `make thorough`."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Any

import pytest


def gate_runs(
    kept: Collection[str], every: Iterable[Any], name: Callable[[Any], str] = str
) -> list[Any]:
    """The values for `parametrize`, each with its name as id; those that are not kept are thorough.

    >>> [one.id for one in gate_runs({"b"}, "abc") if not one.marks]
    ['b']
    """
    values = {name(value): value for value in every}
    assert {*kept} <= {*values}, f"no such variants: {', '.join({*kept} - {*values})}"
    return [
        pytest.param(value, id=text, marks=[] if text in kept else [pytest.mark.thorough])
        for text, value in values.items()
    ]
