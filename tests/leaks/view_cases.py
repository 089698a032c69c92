"""The leak cases of views: every way in which a tensor is read, or is refused."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from my_utils import _core

from .harness import case


class OnlyDlpack:
    def __init__(self, x: Any) -> None:
        self.x = x

    def __dlpack__(self, **options: Any) -> Any:
        return self.x.__dlpack__(**options)


class WrongDlpack:
    def __dlpack__(self, **options: Any) -> Any:
        return object()


@case("tensor_hash", repeat=300)
def views_of_buffers(folder: Path) -> Iterator[Callable[[], object]]:
    numpy = pytest.importorskip("numpy", reason="numpy is not installed")
    sources = [
        (ctypes.c_float * 3)(1, 2, 3),
        memoryview(bytes(64))[::2],
        numpy.zeros(30, dtype=[("flag", "i1"), ("value", "i4")])["value"],
        numpy.arange(60).reshape(3, 4, 5).T,
        OnlyDlpack(numpy.arange(8.0)),
        numpy.float32(3),
    ]
    wrong = [
        numpy.zeros(2, dtype=">i4"),
        numpy.zeros(2, dtype="M8[s]"),
        WrongDlpack(),
        [sources[0], sources[2], 3],
    ]

    def action() -> None:
        _core.tensor_hash(sources)
        for source in wrong:
            with suppress(TypeError):
                _core.tensor_hash(source)
                raise AssertionError(f"{source!r} was hashed")

    yield action


@case("tensor_hash", repeat=200)
def views_of_torch_tensors(folder: Path) -> Iterator[Callable[[], object]]:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    from torch.testing._internal.two_tensor import TwoTensor

    x = torch.arange(24.0)
    sources = [
        torch.nn.Parameter(x),
        x.reshape(4, 6).t(),
        (x * 1j).conj().imag,
        torch._neg_view(x),
        torch._efficientzerotensor(5),
        OnlyDlpack(x),
        x.to(torch.float8_e4m3fn),
    ]
    gone = torch.ones(3)
    gone.untyped_storage().resize_(0)
    wrong = [
        gone,
        torch.eye(3).to_sparse(),
        torch.empty(3, device="meta"),
        TwoTensor(x, x),
        torch.nn.parameter.UninitializedParameter(),
        [x, gone],
    ]

    def action() -> None:
        _core.tensor_hash(sources)
        for source in wrong:
            with suppress(TypeError):
                _core.tensor_hash(source)
                raise AssertionError("something without memory was hashed")

    yield action
