"""The leak cases of the comparison of two tensors."""

from __future__ import annotations

import contextlib
import operator
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path

import torch

from my_utils import _core

from .harness import case


def different() -> _core.TensorDiff:
    a = torch.arange(12.0).reshape(3, 4)
    return _core.compare(a, a.flip(0), max_mismatches=3)


@case("compare", repeat=300)
def compare_tensors(folder: Path) -> Iterator[Callable[[], object]]:
    matrix, big = torch.randn(40, 50), torch.randn(2**18 + 1)
    complex_numbers = torch.randn(40, 50, dtype=torch.complex64)
    wide = torch.full((4,), -(2**63)), torch.full((4,), 2**64 - 1, dtype=torch.uint64)
    holes = torch.where(matrix > 1, torch.nan, matrix)

    def action() -> None:
        for other in (matrix, matrix + 1, matrix.double().T.contiguous().T, holes, complex_numbers):
            _core.compare(matrix, other, atol=0.5, rtol=0, equal_nan=True)
        _core.compare(complex_numbers, complex_numbers.conj(), max_mismatches=100)
        _core.compare(big, big.clone())
        _core.compare(big, -big, max_mismatches=1000)
        _core.compare(*wide)
        _core.compare(b"bytes", b"other")

    yield action


@case("compare")
def compare_in_vain(folder: Path) -> Iterator[Callable[[], object]]:
    small = torch.randn(64)

    def action() -> None:
        for a, b, options in (
            (small, None, {}),
            ("text", small, {}),
            (small, small[:3], {}),
            (small, small, {"atol": -1.0}),
            (small, small, {"rtol": "big"}),
            (small, small, {"max_mismatches": -1}),
            (small, small, {"equal_nan": 1}),
        ):
            with contextlib.suppress(TypeError, ValueError):
                _core.compare(a, b, **options)
                raise AssertionError(f"{a!r}, {b!r} and {options} were compared")

    yield action


@case(
    "TensorDiff",
    "TensorDiff.__bool__",
    "TensorDiff.__eq__",
    "TensorDiff.__ge__",
    "TensorDiff.__gt__",
    "TensorDiff.__hash__",
    "TensorDiff.__le__",
    "TensorDiff.__lt__",
    "TensorDiff.__ne__",
    "TensorDiff.__reduce__",
    "TensorDiff.__repr__",
    "TensorDiff.__str__",
    repeat=500,
)
def handle_a_diff(folder: Path) -> Iterator[Callable[[], object]]:
    diff = different()

    def action() -> None:
        same = pickle.loads(pickle.dumps(diff))
        assert same == diff and not operator.ne(same, diff) and hash(same) == hash(diff)
        assert repr(same) == repr(diff) and str(same) == str(diff)
        for wrong in (lambda: bool(diff), lambda: _core.TensorDiff(1), lambda: diff < same):
            with contextlib.suppress(TypeError):
                wrong()
                raise AssertionError("that should have been refused")

    yield action
