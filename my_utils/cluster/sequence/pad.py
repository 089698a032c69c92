"""Padding for sequence parallelism: a dimension made divisible by the number of ranks, and undone.

>>> import torch
>>> tokens = torch.tensor([[5, 6, 7]])
>>> padded = pad_for_sequence_parallel(tokens, padding_value=0, world_size=2)
>>> padded
tensor([[5, 6, 7, 0]])
>>> remove_pad_by_value(padded, 0, original_length=3)
tensor([[5, 6, 7]])
"""

from __future__ import annotations

import math
import numbers
import sys
from typing import TYPE_CHECKING, Literal

from ...core.arguments import check_int
from ...core.lazy_modules import lazy_module
from ...core.ranks import world_size as _world_size
from ...core.warnings import warn_once

if TYPE_CHECKING:
    import torch
else:
    torch = lazy_module("torch")


Side = Literal["left", "right"]


def pad_for_sequence_parallel(
    tensor: torch.Tensor,
    padding_value: float | complex | bool = 0,
    dim: int = -1,
    world_size: int | None = None,
    side: Side = "right",
) -> torch.Tensor:
    """The tensor, padded so that the size of `dim` is the next multiple of `world_size`.

    tensor: any dtype and device, one dimension at least.
    padding_value: what the new elements hold; the dtype must be able to.
    dim: the dimension of the sequence; negative ones count from the end.
    world_size: the ranks that share a sequence. By default those of Megatron's tensor
        parallel group, where the program has set up the groups of `megatron.core.parallel_state`
        (`pip install megatron-core`), else all of the job. Give it where more ranks share a
        sequence, as with Megatron's context parallelism.
    side: where the new elements go, "right" (behind the sequence) or "left".

    A tensor that fits already is returned itself, not a copy. Gradients of the padding are dropped.
    It makes one graph under `torch.compile`, in which the default of `world_size` is a constant.
    Keep `tensor.shape[dim]` for `remove_pad_by_value`.

    TypeError and ValueError name the argument.

    >>> import torch
    >>> pad_for_sequence_parallel(torch.ones(2, 3), -1, dim=0, world_size=4, side="left")
    tensor([[-1., -1., -1.],
            [-1., -1., -1.],
            [ 1.,  1.,  1.],
            [ 1.,  1.,  1.]])
    """
    dim = _check(tensor, dim, side)
    size = _ranks_of_a_sequence() if world_size is None else check_int("world_size", world_size, 1)
    padding_value = _check_value(tensor, padding_value)
    missing = -tensor.shape[dim] % size
    if missing == 0:
        return tensor
    import torch

    shape = [*tensor.shape[:dim], missing, *tensor.shape[dim + 1 :]]
    padding = tensor.new_full(shape, padding_value)
    parts = (tensor, padding) if side == "right" else (padding, tensor)
    return torch.cat(parts, dim)


def _ranks_of_a_sequence() -> int:
    # Never imported here, as that takes seconds. A program with such groups has imported it.
    megatron = sys.modules.get("megatron.core.parallel_state")
    if megatron is not None and megatron.model_parallel_is_initialized():
        return int(megatron.get_tensor_model_parallel_world_size())
    return _world_size()


# What torch.compiler.assume_constant_result does, which would import Dynamo: a compiled graph has
# the number in it.
_ranks_of_a_sequence._dynamo_marked_constant = True  # type: ignore[attr-defined]


def remove_pad_by_value(
    tensor: torch.Tensor,
    padding_value: float | complex | bool = 0,
    dim: int = -1,
    original_length: int | None = None,
    side: Side = "right",
) -> torch.Tensor:
    """The tensor without its padding: a view of it.

    padding_value, dim, side: as passed to `pad_for_sequence_parallel`.
    original_length: `tensor.shape[dim]` before the padding, which makes the way back exact.

    Without `original_length` every slice at that end which holds nothing but `padding_value` is
    removed (NaN matches NaN), and so is real data that ends in such slices; the first such call
    warns. It then reads the tensor back from its device, and breaks the graph of `torch.compile`.

    TypeError and ValueError name the argument.

    >>> import torch
    >>> remove_pad_by_value(torch.tensor([[1, 0, 0], [2, 3, 0]]), 0, original_length=2)
    tensor([[1, 0],
            [2, 3]])
    """
    dim = _check(tensor, dim, side)
    padding_value = _check_value(tensor, padding_value)
    length = tensor.shape[dim]
    if original_length is None:
        warn_once(
            "remove_pad_by_value",
            "remove_pad_by_value without original_length takes real data that ends in the "
            "padding value for padding",
        )
        kept = _length_without_padding(tensor, padding_value, dim, side)
    else:
        kept = check_int("original_length", original_length, 0)
        if kept > length:
            raise ValueError(f"original_length must be at most {length}, not {kept}")
    return tensor.narrow(dim, 0 if side == "right" else length - kept, kept)


def _length_without_padding(
    tensor: torch.Tensor, value: float | complex | bool, dim: int, side: Side
) -> int:
    import torch

    expected = tensor.new_full((), value)
    if value != value:
        narrow = tensor.dtype.itemsize == 1  # torch has no isnan of floats of 8 bits
        real = ~(tensor.float() if narrow else tensor).isnan()
    elif tensor.dtype.itemsize == 1:  # torch does not compare floats of 8 bits
        real = tensor.view(torch.uint8) != expected.view(torch.uint8)
    else:
        real = tensor != expected
    others = [other for other in range(tensor.dim()) if other != dim]
    if any(tensor.shape[other] == 0 for other in others):
        return tensor.shape[dim]  # nothing says what of it is padding
    found = real.amax(others).nonzero() if others else real.nonzero()
    if found.numel() == 0:
        return 0
    if side == "right":
        return int(found[-1]) + 1
    return tensor.shape[dim] - int(found[0])


def _check(tensor: object, dim: object, side: object) -> int:
    """The dimension, counted from the front."""
    import torch

    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"tensor must be a torch.Tensor, not {type(tensor).__name__}")
    dims = tensor.dim()
    found = check_int("dim", dim)
    if not -dims <= found < dims:
        raise ValueError(f"dim must be from {-dims} to {dims - 1} for this tensor, not {dim}")
    if side not in ("left", "right"):
        raise ValueError(f'side must be "left" or "right", not {side!r}')
    return found % dims


def _check_value(tensor: torch.Tensor, value: object) -> complex:
    """The number as one of Python's, which numpy's mostly are not. ValueError if the dtype cannot
    hold it: a -100 in uint8 would become 156."""
    import torch

    dtype = tensor.dtype
    if isinstance(value, numbers.Number) and hasattr(value, "item"):
        value = value.item()
    if not isinstance(value, int | float | complex):
        raise TypeError(f"padding_value must be a number, not {type(value).__name__}")
    if isinstance(value, complex) and not dtype.is_complex:
        raise ValueError(f"padding_value must be real for {dtype}, not {value}")
    if dtype.is_floating_point or dtype.is_complex:
        _check_float(dtype, value)
        return value
    least, most = 0, 1
    if dtype != torch.bool:
        limits = torch.iinfo(dtype)
        least, most = limits.min, limits.max
    if not (math.isfinite(value.real) and value == int(value.real) and least <= value.real <= most):
        raise ValueError(
            f"padding_value must be an integer from {least} to {most} for {dtype}, not {value}"
        )
    return value


def _check_float(dtype: torch.dtype, value: float | complex | bool) -> None:
    """ValueError for a number or an infinity that the dtype does not have; all have a NaN."""
    import torch

    size = abs(value)
    if math.isinf(size):
        if dtype.itemsize == 1 and dtype != torch.float8_e5m2:
            raise ValueError(f"padding_value must be finite or NaN for {dtype}, not {value}")
    elif size > torch.finfo(dtype).max:
        most = torch.finfo(dtype).max
        raise ValueError(f"padding_value must be from {-most} to {most} for {dtype}, not {value}")
