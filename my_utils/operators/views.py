"""Operators that return views. They compute no values, so the view itself is checked."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .check import OpCheck
from .inputs import map_tensors, tensors_in
from .policy import OpPlan


def check_view(check: OpCheck, plan: OpPlan, args: Any, kwargs: Any, result: Any) -> None:
    """Adds to `check` how the views in `result` differ from those that the operator should give:
    in shape, dtype, strides or place. Nothing is read from memory."""
    source = next(iter(tensors_in(args)), None)
    views = tensors_in(result)
    if source is None or source.device.type == "cpu":
        again = plan.func(*args, **kwargs)
        begin = 0
    else:  # the device is what is in doubt
        again = plan.func(*map_tensors(args, _without_memory), **kwargs)
        begin = source.data_ptr() - int(source.storage_offset()) * source.element_size()
    expected = tensors_in(again)
    if len(views) != len(expected):
        check.lines.append(f"Lengths differ: {len(views)} vs {len(expected)}")
    for place, (view, other) in enumerate(zip(views, expected, strict=False)):
        _check_one(check, view, other, begin, f"{place}: " if len(expected) > 1 else "")


def _without_memory(tensor: Tensor) -> Tensor:
    span = tensor.untyped_storage().nbytes() // tensor.element_size()
    base = torch.empty(span, dtype=tensor.dtype, device="meta")
    return base.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())


def _check_one(check: OpCheck, view: Tensor, other: Tensor, begin: int, where: str) -> None:
    if view.shape != other.shape:
        check.lines.append(f"{where}Tensor shapes differ: {view.shape} vs {other.shape}")
    elif view.dtype != other.dtype:
        check.lines.append(f"{where}Tensor dtypes differ: {view.dtype} vs {other.dtype}")
    elif view.layout is not torch.strided or view.numel() == 0:
        return
    elif view.stride() != other.stride():
        check.lines.append(f"{where}Tensor strides differ: {view.stride()} vs {other.stride()}")
    elif _address(view, 0) != _address(other, begin):
        check.lines.append(f"{where}Views begin at different places in memory")


def _address(tensor: Tensor, begin: int) -> int:
    if tensor.is_meta:
        return begin + int(tensor.storage_offset()) * tensor.element_size()
    return tensor.data_ptr()
