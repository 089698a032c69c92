"""Random tensors of all dtypes and strides, random tilings of them, and how a place of a tensor is
written, found by counting elements."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch

from my_utils.tensors.passport.boxes import Box

from .dtypes import DTYPES

BLOCK_BYTES = 4096
# By the number of dimensions: the largest size of each.
_LENGTHS = {1: 32_000, 2: 150, 3: 28, 4: 12}


class Made(NamedTuple):
    """A tensor, and the same memory seen by NumPy, each element as its bytes."""

    tensor: torch.Tensor
    items: np.ndarray

    @property
    def data(self) -> bytes:
        """The elements in row-major order."""
        return self.items.tobytes()

    @property
    def name(self) -> str:
        return str(self.tensor.dtype).removeprefix("torch.")

    def change(self, rng: random.Random) -> tuple[int, ...]:
        """Changes a bit of one element, whose index it returns."""
        index = tuple(rng.randrange(size) for size in self.items.shape)
        element = bytearray(self.items[index].tobytes())
        bit = 0 if self.tensor.dtype == torch.bool else rng.randrange(8 * len(element))
        element[bit // 8] ^= 1 << bit % 8
        self.items[index] = np.frombuffer(bytes(element), self.items.dtype)[0]
        return index


def random_tensor(rng: random.Random, is_repeated: bool = True) -> Made:
    """Of one to four dimensions, in any order in memory, with or without gaps. Sometimes all sizes
    are multiples of 16. is_repeated: it may have one index of a dimension several times."""
    ndim, unit = rng.randint(1, 4), rng.choice([1, 1, 16])
    shape = [unit * rng.randint(1, max(_LENGTHS[ndim] // unit, 1)) for _ in range(ndim)]
    if rng.random() < 0.1:
        shape[rng.randrange(ndim)] = 1
    dtype, order = rng.choice(DTYPES), rng.sample(range(ndim), ndim)
    while math.prod(shape) * dtype.itemsize > 1 << 15:
        longest = shape.index(max(shape))
        shape[longest] = max(1, shape[longest] // 2)
    repeated = rng.randrange(ndim) if is_repeated and rng.random() < 0.1 else None
    steps = [rng.choice([1, 1, 1, 2, 3]) for _ in shape]
    firsts = [rng.randrange(3) for _ in shape]
    room = [first + size * step for first, size, step in zip(firsts, shape, steps, strict=True)]
    memory = bytearray(rng.randbytes(math.prod(room) * dtype.itemsize))
    if dtype == torch.bool:
        memory = bytearray(byte & 1 for byte in memory)
    kept = tuple(
        slice(first, first + size * step, step)
        for first, size, step in zip(firsts, shape, steps, strict=True)
    )
    back = [order.index(dim) for dim in range(ndim)]
    tensor = torch.frombuffer(memory, dtype=torch.uint8).view(dtype)
    tensor = tensor.reshape([room[dim] for dim in order]).permute(back)[kept]
    items = np.frombuffer(memory, f"V{dtype.itemsize}")
    items = items.reshape([room[dim] for dim in order]).transpose(back)[kept]
    if repeated is not None:
        tensor = tensor.narrow(repeated, 0, 1).expand(shape)
        items = np.broadcast_to(np.take(items, [0], repeated), shape)
    return Made(tensor, items)


def random_tiling(shape: Sequence[int], rng: random.Random) -> list[Box]:
    """Cuts a box along a random dimension, over and over; some have no element."""
    boxes = [Box((0,) * len(shape), tuple(shape))]
    for _ in range(rng.randrange(12)):
        box = boxes.pop(rng.randrange(len(boxes)))
        dim = rng.randrange(len(shape))
        at = rng.randrange(box.size[dim] + 1)
        for begin, length in ((0, at), (at, box.size[dim] - at)):
            first = (*box.at[:dim], box.at[dim] + begin, *box.at[dim + 1 :])
            boxes.append(Box(first, (*box.size[:dim], length, *box.size[dim + 1 :])))
    return boxes


def view_of(tensor: torch.Tensor, box: Box) -> torch.Tensor:
    return tensor[tuple(slice(at, at + size) for at, size in zip(*box, strict=True))]


def block_text(
    index: Sequence[int], shape: Sequence[int], item_bytes: int, box: Box | None = None
) -> str:
    """In words, the elements that are in the block of an element, and in the box."""
    whole = np.arange(math.prod(shape)).reshape(shape)
    near = whole * item_bytes // BLOCK_BYTES == whole[tuple(index)] * item_bytes // BLOCK_BYTES
    spans = []
    is_one = True  # all of them have one index in each dimension before
    for dim in range(len(shape)):
        axes = tuple(other for other in range(len(shape)) if other != dim)
        there = np.flatnonzero(near.any(axes)) if is_one else np.arange(shape[dim])
        low, high = int(there[0]), int(there[-1])
        is_one = is_one and low == high
        if box is not None:
            low, high = max(low, box.at[dim]), min(high, box.at[dim] + box.size[dim] - 1)
        spans.append((low, high))
    words = ["elements"] if len(shape) == 1 else ["rows", "columns"]
    if len(shape) > 2:
        words = ["rows", *(f"dimension {dim}:" for dim in range(1, len(shape)))]
    return ", ".join(
        f"{word} {low}" if low == high else f"{word} {low}-{high}"
        for word, (low, high), size in zip(words, spans, shape, strict=True)
        if high - low + 1 < size
    )
