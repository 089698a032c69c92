"""Checks whether the result of an operator is finite, and whether infinities matter."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from ...tensors import nan_inf_count
from ...tensors.tensor_kinds import has_kernels
from .policy import OpPlan


class Counts:
    """NaNs and infinities of several tensors and numbers together."""

    __slots__ = ("elements", "nan", "neg_inf", "pos_inf")

    def __init__(self) -> None:
        self.nan = self.pos_inf = self.neg_inf = self.elements = 0

    @property
    def inf(self) -> int:
        return self.pos_inf + self.neg_inf

    def add(self, value: Any) -> None:
        if isinstance(value, Tensor):
            self._add_tensor(value)
        elif isinstance(value, float):
            self.nan += math.isnan(value)
            self.pos_inf += value == math.inf
            self.neg_inf += value == -math.inf
        elif isinstance(value, list | tuple):
            for item in value:
                self.add(item)
        elif isinstance(value, dict):
            for item in value.values():
                self.add(item)

    def _add_tensor(self, tensor: Tensor) -> None:
        self.elements += tensor.numel()
        if not (tensor.is_floating_point() or tensor.is_complex()):
            return
        nan, pos_inf, neg_inf = _counted(tensor)
        self.nan += nan
        self.pos_inf += pos_inf
        self.neg_inf += neg_inf


def values_of(tensor: Tensor) -> Tensor:
    """The elements of a tensor of any layout, as a strided one."""
    if tensor.is_nested:
        return tensor.values()
    return tensor if tensor.layout is torch.strided else tensor.to_dense()


def _counted(tensor: Tensor) -> tuple[int, int, int]:
    """NaN, +Inf, -Inf of a tensor of any layout, on any device."""
    tensor = values_of(tensor)
    if tensor.is_meta:
        return 0, 0, 0
    if has_kernels(tensor):
        counts = nan_inf_count(tensor)
        return counts.nan, counts.pos_inf, counts.neg_inf
    nan, pos_inf, neg_inf = counts_on_device(tensor).tolist()
    return int(nan), int(pos_inf), int(neg_inf)


def counts_on_device(tensor: Tensor) -> Tensor:
    """The three counts by operators of torch, on a device without kernels of ours."""
    parts = torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor
    masks = (torch.isnan(parts), parts == math.inf, parts == -math.inf)
    return torch.stack([mask.sum() for mask in masks])


def is_clean(value: Any) -> bool:
    """Whether all is finite; the fast way, for what nearly always is."""
    if isinstance(value, Tensor):
        if not value.is_floating_point() and not value.is_complex():
            return True
        nan, pos_inf, neg_inf = _counted(value)
        return not (nan or pos_inf or neg_inf)
    if isinstance(value, list | tuple):
        return all(map(is_clean, value))
    return not (isinstance(value, float) and not math.isfinite(value))


def is_finding(plan: OpPlan, before: Counts, after: Counts, inputs: list[Tensor]) -> bool:
    """Whether a user wants to know of what came out. NaN always; an infinity where it was made of
    finite inputs, outside of the operators that make constants and masks."""
    if after.nan:
        return True
    return bool(after.inf and inputs) and not before.inf and not plan.constant
