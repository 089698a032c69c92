"""Tensors without plain memory: their metadata, and the parts that can be read.

The parts of a sparse tensor are its indices and values, those of a wrapper its inner tensors, that
of a DTensor its local shard. A tensor without memory, such as a meta tensor, has metadata only.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch

from ..dtypes import dtype_name
from ..tensor_kinds import SPARSE_PARTS, why_unreadable
from .recording import TraceTensorMeta


class Part(NamedTuple):
    meta: TraceTensorMeta
    tensor: torch.Tensor | None  # None: nothing to read


def split_tensor(path: str, tensor: torch.Tensor) -> Iterator[Part]:
    """The tensor itself and, after it, what it consists of."""
    try:
        yield from _split_value(path, tensor)
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"[:300]
        yield Part(TraceTensorMeta(path, note=reason), None)


def _split_value(path: str, tensor: torch.Tensor) -> Iterator[Part]:
    kind = type(tensor).__name__
    if kind == "AsyncCollectiveTensor":
        yield from _split_value(path, tensor.wait())  # type: ignore[attr-defined]
        return
    if kind == "DTensor":
        yield from _split_shard(path, tensor)
        return
    names = SPARSE_PARTS.get(str(tensor.layout))
    if names is not None:
        yield Part(_form(path, tensor, "its parts follow"), None)
        for name in names:
            yield from _split_value(f"{path}.{name.lstrip('_')}", getattr(tensor.detach(), name)())
    elif getattr(tensor, "fake_mode", None) is not None:
        yield Part(_form(path, tensor, "a fake tensor has no memory"), None)
    elif hasattr(tensor, "__tensor_flatten__"):
        yield Part(_form(path, tensor, f"a {kind}; its parts follow"), None)
        for name in tensor.__tensor_flatten__()[0]:
            yield from _split_value(f"{path}.{name}", getattr(tensor, name))
    else:
        reason = why_unreadable(tensor)
        yield Part(_form(path, tensor, reason), tensor if reason is None else None)


def _split_shard(path: str, tensor: Any) -> Iterator[Part]:
    placements, shape = str(tuple(tensor.placements)), tuple(tensor.shape)
    for part in _split_value(path, tensor.to_local()):
        part.meta.placements, part.meta.global_shape = placements, shape
        part.meta.requires_grad = tensor.requires_grad
        yield part


def _form(path: str, tensor: torch.Tensor, note: str | None) -> TraceTensorMeta:
    strided = tensor.layout is torch.strided and not tensor.is_nested
    return TraceTensorMeta(
        path,
        () if tensor.is_nested else tuple(tensor.shape),
        dtype_name(tensor.dtype),
        str(tensor.device),
        stride=tuple(tensor.stride()) if strided else None,
        requires_grad=tensor.requires_grad,
        layout=str(tensor.layout).removeprefix("torch."),
        note=note,
    )
