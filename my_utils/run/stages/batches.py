"""Counts the samples and tokens of a batch, from shapes only."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

_TOKENS = ("input_ids", "tokens", "input_tokens")
_WHOLE = frozenset((torch.int64, torch.int32))
_DEPTH = 3


def batch_size(batch: Any) -> tuple[int, int]:
    """(samples, tokens) of a batch; 0 if it does not show. Reads shapes only, never values.

    The samples are the first dimension of the first tensor. A whole-number tensor of two dimensions
    holds tokens.

    >>> batch_size([torch.zeros(4, 3), torch.zeros(4)])
    (4, 0)
    >>> batch_size({"input_ids": torch.ones(2, 7, dtype=torch.int64)})
    (2, 14)
    """
    tensor = _first_tensor(batch, _DEPTH)
    if tensor is None:
        return 0, 0
    shape = tensor.shape
    if not shape:
        return 0, 0
    tokens = tensor.dtype in _WHOLE and len(shape) == 2
    return shape[0], shape[0] * shape[1] if tokens else 0


def _first_tensor(batch: Any, depth: int) -> torch.Tensor | None:
    kind = type(batch)
    if kind is torch.Tensor:
        found: torch.Tensor = batch
        return found
    if not depth:
        return None
    parts: Any = ()
    if kind is list or issubclass(kind, tuple):
        parts = batch[:2]
    elif issubclass(kind, Mapping):
        parts = _values(batch)
    for part in parts:
        tensor = _first_tensor(part, depth - 1)
        if tensor is not None:
            return tensor
    return None


def _values(batch: Mapping[Any, Any]) -> list[Any]:
    for name in _TOKENS:
        if name in batch:
            return [batch[name]]
    return list(batch.values())[:8]
