"""The leak cases of what is computed on tensors."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch

from my_utils import _core

from .harness import case


@case("md5")
def md5_of_one(folder: Path) -> Iterator[Callable[[], object]]:
    tensor, array = torch.arange(100), np.arange(100)
    yield lambda: (_core.md5(tensor), _core.md5(tensor[::2]), _core.md5(array[::-1]))


@case("md5", repeat=200)
def md5_of_many(folder: Path) -> Iterator[Callable[[], object]]:
    parts = [torch.arange(2000), np.arange(10), b"bytes", torch.ones(70, 50).t(), torch.zeros(0)]
    many = parts * 20
    yield lambda: (_core.md5(many), _core.md5(tuple(parts)), _core.md5([]))


@case("md5")
def md5_of_no_tensor(folder: Path) -> Iterator[Callable[[], object]]:
    def action() -> None:
        for wrong in (None, [torch.ones(3), "text"], torch.ones(2, device="meta")):
            with contextlib.suppress(TypeError):
                _core.md5(wrong)
                raise AssertionError(f"{wrong} was taken")

    yield action
