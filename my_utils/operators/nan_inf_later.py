"""Counts NaNs on the device asynchronously, and reads the counts once a step without waiting."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..tensors import torch_ops as _torch_ops
from ..tensors.tensor_kinds import has_kernels
from .finite import counts_on_device
from .inputs import distinct_tensors

_CALLS_MAX = 20_000  # then they are read before the step has ended


class Call(NamedTuple):
    """One call of an operator, and how many of its results' elements are NaN, +Inf and -Inf."""

    title: str
    op: str
    module: str
    elements: int
    nan: int = 0
    pos_inf: int = 0
    neg_inf: int = 0


class LaterCounts:
    """Counts that are still on their devices. For one thread."""

    def __init__(self) -> None:
        _torch_ops.register()
        self._calls: list[tuple[Call, list[Tensor]]] = []

    @property
    def is_full(self) -> bool:
        return len(self._calls) >= _CALLS_MAX

    def add(self, call: Call, result: Any) -> None:
        """Starts counting; nothing is waited for."""
        counts = [
            _count(tensor.detach())
            for tensor in distinct_tensors(result)
            if tensor.is_floating_point() or tensor.is_complex()
        ]
        if counts:
            self._calls.append((call, counts))

    def take(self) -> list[Call]:
        """The calls that gave a NaN, in their order. Waits for the devices."""
        calls, self._calls = self._calls, []
        found = []
        for (call, _), row in zip(calls, _sums([counts for _, counts in calls]), strict=True):
            if row[0]:
                found.append(call._replace(nan=row[0], pos_inf=row[1], neg_inf=row[2]))
        return found


def _count(tensor: Tensor) -> Tensor:
    """NaN, +Inf, -Inf of a tensor, where it is."""
    if has_kernels(tensor):
        counts: Tensor = torch.ops.my_utils.nan_inf_count(tensor)
        return counts
    return counts_on_device(tensor)


def _sums(groups: list[list[Tensor]]) -> list[list[int]]:
    """Of the counts of each call; each device is read once."""
    by_device: dict[torch.device, list[tuple[int, Tensor]]] = {}
    for place, counts in enumerate(groups):
        for count in counts:
            by_device.setdefault(count.device, []).append((place, count))
    sums = [[0, 0, 0] for _ in groups]
    for waiting in by_device.values():
        rows = torch.stack([count for _, count in waiting]).cpu().tolist()
        for (place, _), row in zip(waiting, rows, strict=True):
            sums[place] = [a + b for a, b in zip(sums[place], row, strict=True)]
    return sums
