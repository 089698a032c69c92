"""Checks whether the result of an operator is finite, whether infinities matter, and whether a NaN
came from another rank, where it is not searched for here."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from ...tensors import nan_inf_count
from ...tensors.tensor_kinds import has_kernels, stored_parts
from .inputs import distinct_tensors
from .policy import OpPlan


class Counts:
    """NaNs and infinities of several tensors and numbers together."""

    __slots__ = ("elements", "nan", "neg_inf", "pos_inf")

    def __init__(self) -> None:
        self.nan = self.pos_inf = self.neg_inf = self.elements = 0

    @classmethod
    def of(cls, value: Any) -> Counts:
        """Of tensors and numbers in nested lists, tuples and dicts."""
        counts = cls()
        counts._add(value)
        return counts

    @property
    def inf(self) -> int:
        return self.pos_inf + self.neg_inf

    def _add(self, value: Any) -> None:
        if isinstance(value, Tensor):
            self._add_tensor(value)
        elif isinstance(value, float):
            self.nan += math.isnan(value)
            self.pos_inf += value == math.inf
            self.neg_inf += value == -math.inf
        elif isinstance(value, list | tuple):
            for item in value:
                self._add(item)
        elif isinstance(value, dict):
            for item in value.values():
                self._add(item)

    def _add_tensor(self, tensor: Tensor) -> None:
        self.elements += tensor.numel()
        if not (tensor.is_floating_point() or tensor.is_complex()):
            return
        nan, pos_inf, neg_inf = _counted(tensor)
        self.nan += nan
        self.pos_inf += pos_inf
        self.neg_inf += neg_inf


def values_of(tensor: Tensor) -> Tensor:
    """The elements that a tensor of any layout stores, as a strided one. A dense copy of a sparse
    gradient may be larger than all memory."""
    if tensor.layout is torch.strided and not tensor.is_nested:
        return tensor
    if tensor.is_nested:
        return tensor.values()
    parts = stored_parts(tensor)
    return parts[-1] if parts else tensor.to_dense()


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


# --- from other ranks ---


class Arrivals:
    """The memory that the collectives of a step have filled, with the collective's name, where what
    this rank gave to it was clean. Memory that is given back is forgotten. For one thread."""

    def __init__(self) -> None:
        self._filled: dict[int, tuple[StorageWeakRef, str]] = {}

    def clear(self) -> None:
        """For the next step."""
        self._filled.clear()

    def run(self, plan: OpPlan, args: Any, kwargs: dict[str, Any]) -> Any:
        """Runs a collective. What it fills may be there later, so it is not read here."""
        tensors = distinct_tensors((args, kwargs))
        clean = is_clean(tensors) or self.source(tensors) is not None
        result = plan.func(*args, **kwargs)
        if clean:
            name = _plain_name(plan)
            for tensor in (*tensors, *distinct_tensors(result)):
                storage = tensor.untyped_storage()
                self._filled.setdefault(
                    storage._cdata, (StorageWeakRef(storage), name)
                )  # the first one: a wait for it changes nothing
        return result

    def source(self, value: Any) -> str | None:
        """The collective that has filled one of these tensors which is not clean now."""
        for tensor in distinct_tensors(value):
            filled = self._filled.get(_storage_of(tensor))
            if filled is None or filled[0].expired():
                continue
            if Counts.of(tensor).nan:
                return filled[1]
        return None


def _storage_of(tensor: Tensor) -> int:
    try:
        return int(tensor.untyped_storage()._cdata)
    except (NotImplementedError, RuntimeError):  # of a tensor without one
        return 0


def _plain_name(plan: OpPlan) -> str:
    """ "all_reduce", for "c10d.allreduce_" and "_c10d_functional.all_reduce"."""
    name = plan.short.partition(".")[2].rstrip("_")
    for short in ("all", "reduce_"):
        if name.startswith(short) and name[len(short) :][:1].isalpha() and "_" not in name:
            return f"{short.rstrip('_')}_{name[len(short) :]}"
    return name
