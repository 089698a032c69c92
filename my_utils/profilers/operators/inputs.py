"""What an operator is called with: copies that keep strides, views and aliasing, and their move to
the device and the dtypes on which a reference is computed.

>>> import torch
>>> base = torch.arange(6.0)
>>> first, second = copied((base[:4], base[2:]))
>>> first[3] = -1
>>> second
tensor([ 2., -1.,  4.,  5.])
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from ...tensors.tensor_kinds import is_cut

_CPU = torch.device("cpu")

# What takes the place of a dtype that a device cannot compute with.
WIDER: dict[torch.dtype, torch.dtype] = {
    torch.float16: torch.float32,
    torch.bfloat16: torch.float32,
    torch.complex32: torch.complex64,
    torch.float8_e4m3fn: torch.float32,
    torch.float8_e5m2: torch.float32,
    torch.float8_e4m3fnuz: torch.float32,
    torch.float8_e5m2fnuz: torch.float32,
}


def tensors_in(value: Any) -> list[Tensor]:
    """The tensors in nested lists, tuples and dicts, in their order."""
    found: list[Tensor] = []
    _collect(value, found)
    return found


def distinct_tensors(value: Any) -> list[Tensor]:
    """The same, each tensor once."""
    return list({id(tensor): tensor for tensor in tensors_in(value)}.values())


def _collect(value: Any, found: list[Tensor]) -> None:
    if isinstance(value, Tensor):
        found.append(value)
    elif isinstance(value, list | tuple):
        for item in value:
            _collect(item, found)
    elif isinstance(value, dict):
        for item in value.values():
            _collect(item, found)


def map_tensors(value: Any, change: Callable[[Tensor], Any]) -> Any:
    """The same lists, tuples and dicts with other tensors in them."""
    return map_values(value, lambda one: change(one) if isinstance(one, Tensor) else one)


def map_values(value: Any, change: Callable[[Any], Any]) -> Any:
    """The same with other tensors and floats in them."""
    if isinstance(value, Tensor | float):
        return change(value)
    kind = type(value)
    if kind is list or kind is tuple:
        return kind([map_values(item, change) for item in value])
    if kind is dict:
        return {key: map_values(item, change) for key, item in value.items()}
    return value


def device_of(tensors: list[Tensor], kwargs: dict[str, Any]) -> torch.device:
    """Where an operator runs: where its tensors are, a scalar on the CPU aside, or are made."""
    for tensor in tensors:
        if not tensor.is_cpu:
            return tensor.device
    given = kwargs.get("device")
    return _CPU if tensors or given is None else torch.device(given)


# --- copies ---


def resolved(tensor: Tensor) -> Tensor:
    """The tensor as values in memory, where a bit says that they are conjugated or negated.

    Within a mode torch does not: `clone` and `to` copy the memory there, and drop the bits.
    """
    values = _in_memory(tensor)
    if tensor.is_conj():
        values = torch.conj_physical(values)
    return torch.neg(values) if tensor.is_neg() else values


def _in_memory(tensor: Tensor) -> Tensor:
    """What is in memory, without those bits."""
    if tensor.is_conj():
        tensor = torch._conj(tensor)
    return torch._neg_view(tensor) if tensor.is_neg() else tensor


def _as(original: Tensor, copy: Tensor) -> Tensor:
    """A copy of `_in_memory(original)` as what the original is: kernels ask for all of it."""
    if original.is_conj():
        copy = torch._conj(copy)
    if original.is_neg():
        copy = torch._neg_view(copy)
    return copy.requires_grad_() if original.requires_grad and copy.is_leaf else copy


def copied(value: Any, device: torch.device | None = None) -> Any:
    """`value` with copies of its tensors, on `device` or where they are.

    A tensor that is in it twice has one copy; tensors that share memory have copies that share
    memory in the same way; strides stay as they are. TypeError where memory was freed: torch would
    end the process.
    """
    tensors = {id(tensor): tensor for tensor in tensors_in(value)}
    if any(_has_memory(tensor) and is_cut(tensor) for tensor in tensors.values()):
        raise TypeError("the storage of an input was freed or cut")
    copies: dict[int, Tensor] = {}
    for group in _sharing(list(tensors.values())):
        if len(group) == 1:
            copies[id(group[0])] = _copy(group[0], device)
        else:
            copies.update(_copy_together(group, device))
    return map_tensors(value, lambda tensor: copies[id(tensor)])


def _copy(tensor: Tensor, device: torch.device | None) -> Tensor:
    values = _in_memory(tensor)
    if device is not None and device != tensor.device:
        copy = values.to(device)
    else:
        copy = values.clone()
    if not _has_memory(copy) or copy.stride() == tensor.stride():
        return _as(tensor, copy)
    return _copy_together([tensor], device)[id(tensor)]


def _has_memory(tensor: Tensor) -> bool:
    plain = tensor.layout is torch.strided and not tensor.is_nested and not tensor.is_quantized
    return plain and tensor.device.type != "meta"


def _span(tensor: Tensor) -> int:
    """Elements from the first to the last in memory, both counted."""
    if tensor.numel() == 0:
        return 0
    if tensor.is_contiguous():
        return tensor.numel()
    pairs = zip(tensor.shape, tensor.stride(), strict=True)
    return 1 + sum((size - 1) * stride for size, stride in pairs)


def _sharing(tensors: list[Tensor]) -> list[list[Tensor]]:
    """Groups of tensors whose memory overlaps."""
    if len(tensors) < 2:
        return [tensors] if tensors else []
    groups: list[list[Tensor]] = []
    ranges = []
    for tensor in tensors:
        if _has_memory(tensor) and (span := _span(tensor)):
            begin = tensor.data_ptr()
            ranges.append((tensor.device, begin, begin + span * tensor.element_size(), tensor))
        else:
            groups.append([tensor])
    # Devices do not overlap in the addresses that they give out, and if they did, see below.
    ranges.sort(key=lambda item: item[1])
    last_device, reached = None, 0
    for device, begin, end, tensor in ranges:
        if groups and device == last_device and begin < reached:
            groups[-1].append(tensor)
        else:
            groups.append([tensor])
            last_device, reached = device, 0
        reached = max(reached, end)
    return groups


_ALIGNMENT = 64  # bytes; kernels choose their way by the alignment, which so stays what it was


def _copy_together(group: list[Tensor], device: torch.device | None) -> dict[int, Tensor]:
    """Copies the bytes from the first to the last of the group, and puts the views upon them."""
    storage = group[0].untyped_storage()
    start = storage.data_ptr()
    first = min(tensor.data_ptr() for tensor in group) - start
    last = max(tensor.data_ptr() + _span(tensor) * tensor.element_size() for tensor in group)
    first -= first % _ALIGNMENT
    everything = torch.empty(0, dtype=torch.uint8, device=group[0].device)
    everything.set_(storage, first, (last - start - first,), (1,))
    bytes_ = everything.clone() if device is None else everything.to(device, copy=True)
    memory = bytes_.untyped_storage()
    copies = {}
    for tensor in group:
        size = tensor.element_size()
        offset = (tensor.data_ptr() - start - first) // size
        view = torch.empty(0, dtype=tensor.dtype, device=bytes_.device)
        copies[id(tensor)] = _as(tensor, view.set_(memory, offset, tensor.shape, tensor.stride()))
    return copies


# --- other dtypes ---


def converted(
    value: Any, device: torch.device, dtypes: Mapping[torch.dtype, torch.dtype] | None = None
) -> Any:
    """The arguments of a call for another device, and for other dtypes where `dtypes` has them.

    Copies are made of tensors that change; `device=` and `dtype=` arguments are changed, too.
    Integers stay integers. Views among tensors that change their dtype are separated.
    """
    if any(tensor.device != device for tensor in tensors_in(value)):
        value = copied(value, device)
    if dtypes:
        value = map_tensors(value, lambda tensor: _with_dtype(tensor, dtypes))
    return _convert_options(value, device, dtypes or {})


def is_converted(tensors: list[Tensor], kwargs: dict[str, Any], device: torch.device) -> bool:
    """Whether `converted` for the device alone would change nothing."""
    if kwargs and (kwargs.get("pin_memory") or kwargs.get("device") not in (None, device)):
        return False
    return all(tensor.device == device for tensor in tensors)


def _with_dtype(tensor: Tensor, dtypes: Mapping[torch.dtype, torch.dtype]) -> Tensor:
    """With the same strides, which `Tensor.to` keeps for tensors without gaps only."""
    other = dtypes.get(tensor.dtype)
    if other is None:
        return tensor
    values = _in_memory(tensor)
    wide = values.to(other)
    if _has_memory(tensor) and wide.stride() != tensor.stride() and tensor.numel():
        memory = values.as_strided((_span(tensor),), (1,)).to(other)
        wide = memory.as_strided(tensor.shape, tensor.stride(), 0)
    return _as(tensor, wide)


def _convert_options(
    value: Any, device: torch.device, dtypes: Mapping[torch.dtype, torch.dtype]
) -> Any:
    kind = type(value)
    if kind is torch.dtype:
        return dtypes.get(value, value)
    if kind is torch.device:
        return device
    if kind is list or kind is tuple:
        return kind([_convert_options(item, device, dtypes) for item in value])
    if kind is dict:
        return {
            key: False if key == "pin_memory" and item else _convert_options(item, device, dtypes)
            for key, item in value.items()
        }
    return value
