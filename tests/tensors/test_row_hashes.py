"""`row_hashes` against `tensor_hash` of each row."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from my_utils import _core
from my_utils.tensors import tensor_hash

TENSORS = [
    torch.arange(24.0).reshape(4, 6),
    torch.arange(24.0).reshape(6, 4).T,
    torch.arange(24).reshape(4, 6)[:, ::2],
    torch.ones(1, 5, dtype=torch.bfloat16).expand(3, 5),
    torch.arange(5),
    torch.zeros(3, 0),
    torch.zeros(0, 3),
    torch.randn(3, 2, dtype=torch.complex64).conj(),
    torch.randn(3, 40_000),  # more than the GIL is kept for
    torch.randn(2, 300_000),  # rows that are split over threads
    np.arange(12, dtype=np.int16).reshape(3, 4)[::-1],
]


@pytest.mark.parametrize("tensor", TENSORS, ids=lambda each: f"{each.dtype}{tuple(each.shape)}")
def test_each_row_is_hashed_as_if_it_were_alone(tensor: torch.Tensor) -> None:
    rows = [tensor_hash(tensor[i, ...]) for i in range(len(tensor))]
    assert _core.row_hashes(tensor) == bytes.fromhex("".join(row.combined for row in rows))
    assert _core.row_hashes(tensor, False) == bytes.fromhex("".join(row.content for row in rows))


def test_what_has_no_rows_or_no_memory_is_refused() -> None:
    with pytest.raises(ValueError, match="tensor must have a dimension, not none"):
        _core.row_hashes(torch.tensor(3.0))
    with pytest.raises(TypeError, match="a meta tensor has only a shape"):
        _core.row_hashes(torch.ones(2, 2, device="meta"))
    with pytest.raises(TypeError, match="combined must be True or False"):
        _core.row_hashes(torch.ones(2), 1)  # type: ignore[arg-type]
