"""The leak cases of the operators that torch gets from the C module."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from my_utils import _core

from .harness import case


@case("register_torch_kernels")
def register_kernels(folder: Path) -> Iterator[Callable[[], object]]:
    pytest.importorskip("torch", reason="torch is not installed")
    yield _core.register_torch_kernels


@case("register_torch_kernels", repeat=500)
def operators(folder: Path) -> Iterator[Callable[[], object]]:
    torch = pytest.importorskip("torch", reason="torch is not installed")

    importlib.import_module("my_utils.torch_ops")
    operators = torch.ops.my_utils
    x = torch.arange(64.0).reshape(8, 8).t()
    out = torch.zeros(2, 2, dtype=torch.int64)
    gone = torch.zeros(4)
    gone.untyped_storage().resize_(0)

    def action() -> None:
        operators.tensor_hash(x)
        operators.hash_into(x, out, 1)
        operators.stats(x)
        operators.nan_inf_count(x)
        with suppress(RuntimeError):
            operators.tensor_hash(gone)
            raise AssertionError("memory that is gone was hashed")
        with suppress(RuntimeError):
            operators.hash_into(x, out, 2)
            raise AssertionError("a row that is not there was written")

    yield action
