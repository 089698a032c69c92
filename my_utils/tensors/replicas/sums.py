"""The sums of many tensors, where they are. On a GPU the work goes to the current stream, and
nothing waits for it until somebody asks for the numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from ..._core import tensor_sums
from ...core.warnings import warn_once
from .. import torch_ops
from ..tensor_kinds import has_kernels
from .file import SUMS

if TYPE_CHECKING:
    import torch
    from torch import Tensor

_ABSENT = bytes(SUMS.size)


class _OnDevice(NamedTuple):
    """rows: on the host, once `event` has come. places: of the rows among all tensors."""

    rows: Tensor
    event: torch.cuda.Event
    places: list[int]


class Taken:
    """What was taken of some tensors. `wait` gives their sums."""

    def __init__(self, sums: list[bytes], on_devices: Sequence[_OnDevice]) -> None:
        self._sums = sums
        self._on_devices = on_devices

    def wait(self) -> bytes:
        """The sums of all tensors, `SUMS.size` bytes each; zeros for those that are not there.
        Waits for the GPU, from whichever thread."""
        for one in self._on_devices:
            one.event.synchronize()
            rows = one.rows.numpy().tobytes()
            for number, place in enumerate(one.places):
                self._sums[place] = rows[number * SUMS.size : (number + 1) * SUMS.size]
        return b"".join(self._sums)


def take(tensors: Sequence[Tensor | None]) -> Taken:
    """Each tensor as a whole. None is a tensor that is not there; so is one without memory, with a
    warning."""
    sums = [_ABSENT] * len(tensors)
    by_device: dict[torch.device, list[int]] = {}
    for place, tensor in enumerate(tensors):
        if tensor is None:
            continue
        if tensor.is_cuda and has_kernels(tensor):
            by_device.setdefault(tensor.device, []).append(place)
            continue
        try:
            sums[place] = SUMS.pack(*tensor_sums(tensor).sums)
        except TypeError as error:
            warn_once("replicas:memory", f"tensors that cannot be hashed are not checked: {error}")
    on_devices = [_enqueue(device, places, tensors) for device, places in by_device.items()]
    return Taken(sums, on_devices)


def _enqueue(
    device: torch.device, places: list[int], tensors: Sequence[Tensor | None]
) -> _OnDevice:
    import torch

    torch_ops.register()
    with torch.cuda.device(device), torch.no_grad():
        table = torch.empty((len(places), 8), dtype=torch.int64, device=device)
        for row, place in enumerate(places):
            torch.ops.my_utils.sums_into(tensors[place], table, row)
        rows = torch.empty(table.shape, dtype=torch.int64, pin_memory=True)
        rows.copy_(table, non_blocking=True)
        event = torch.cuda.Event(blocking=True)
        event.record()
    return _OnDevice(rows, event, places)
