"""The leak cases of statistics and of the counts of NaN and Inf."""

from __future__ import annotations

import contextlib
import operator
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path

import torch

from my_utils import _core

from .harness import case


@case("stats", "nan_inf_count", repeat=300)
def measure_tensors(folder: Path) -> Iterator[Callable[[], object]]:
    small, big = torch.randn(64), torch.randn(2**18 + 1)
    tensors = [
        small,
        big,
        torch.randn(40, 50).T,
        torch.randn(9, dtype=torch.complex64).conj(),
        torch.tensor([2**63, 1], dtype=torch.uint64),
        torch.tensor([float("nan"), float("inf"), 1e300], dtype=torch.float64),
        torch.empty(0),
        small.numpy()[::-1],
    ]

    def action() -> None:
        for function in (_core.stats, _core.nan_inf_count):
            for tensor in tensors:
                function(tensor)
            function(tensors)
            function(())

    yield action


@case("stats", "nan_inf_count")
def measure_what_is_no_tensor(folder: Path) -> Iterator[Callable[[], object]]:
    small = torch.randn(64)

    def action() -> None:
        for function in (_core.stats, _core.nan_inf_count):
            for wrong in (None, [small, None], torch.empty(3, device="meta"), [small, "text"]):
                with contextlib.suppress(TypeError):
                    function(wrong)
                    raise AssertionError(f"{wrong!r} was measured")

    yield action


@case(
    "TensorStats",
    "TensorStats.as_dict",
    "TensorStats.__repr__",
    "TensorStats.__hash__",
    "TensorStats.__reduce__",
    "TensorStats.__eq__",
    "TensorStats.__ne__",
    "TensorStats.__lt__",
    "TensorStats.__le__",
    "TensorStats.__gt__",
    "TensorStats.__ge__",
)
def use_stats(folder: Path) -> Iterator[Callable[[], object]]:
    found = _core.stats(torch.arange(300))
    empty = _core.stats(torch.empty(0))

    def action() -> None:
        for stats in (found, empty):
            assert _core.TensorStats(**stats.as_dict()) == pickle.loads(pickle.dumps(stats))
            assert hash(stats) and repr(stats) and stats.min != stats.count
        assert found != empty
        for name in ("lt", "le", "gt", "ge"):
            with contextlib.suppress(TypeError):
                getattr(operator, name)(found, empty)
                raise AssertionError("statistics have an order")
        for wrong in ((), (1,) * 14, ("1",) * 15, (1, 1, "min", *(1,) * 12)):
            with contextlib.suppress(TypeError):
                _core.TensorStats(*wrong)
                raise AssertionError(f"{wrong} was taken")

    yield action


@case("NanInfCount", "NanInfCount.__repr__", "NanInfCount.__reduce__")
def use_counts(folder: Path) -> Iterator[Callable[[], object]]:
    found = _core.nan_inf_count(torch.tensor([float("nan"), 1.0]))

    def action() -> None:
        assert pickle.loads(pickle.dumps(found)) == found == _core.NanInfCount((1, 0, 0))
        assert repr(found) and found.nan

    yield action


if hasattr(_core.NanInfCount, "__replace__"):

    @case("NanInfCount.__replace__")
    def replace_counts(folder: Path) -> Iterator[Callable[[], object]]:
        replace = getattr(_core.NanInfCount((1, 0, 0)), "__replace__")  # noqa: B009
        yield lambda: replace(nan=2)
