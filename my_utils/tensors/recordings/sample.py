"""Selects some elements of a tensor, without any generator of torch, numpy or Python.

>>> import torch
>>> Sampler("rand", 3, seed=7).take(torch.arange(100)).tolist()
[0, 42, 81]
>>> Sampler("head", 3).take(torch.arange(100).reshape(10, 10).t()).tolist()
[0, 10, 20]
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from ..tensor_kinds import as_bytes

SampleMode = Literal["none", "head", "rand"]
Places: TypeAlias = npt.NDArray[Any]

# Indexing knows the plain types only; the others are moved as bits.
_BITS_OF_SIZE = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_KEPT_MAX = 256


def _mixed(values: Places) -> Places:
    """splitmix64's finalizer (Steele, Lea, Flood: Fast splittable pseudorandom generators)."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: Places = values ^ (values >> np.uint64(31))
    return mixed


def random_places(elements: int, wanted: int, seed: int) -> Places:
    """`wanted` different indices below `elements`, rising; the same ones everywhere.

    The tensor is cut into `wanted` parts of nearly equal length, and each gives one index by the
    hash of the seed, the number of elements and the part.
    """
    parts = np.arange(wanted + 1, dtype=np.uint64)
    # elements * wanted may pass 2**64, so whole lengths and the rest are spread apart.
    edges = parts * np.uint64(elements // wanted)
    edges += parts * np.uint64(elements % wanted) // np.uint64(wanted)
    start = _mixed(np.array([seed % 2**64, elements], dtype=np.uint64))
    lengths = edges[1:] - edges[:-1]
    with np.errstate(over="ignore"):
        counter = start[0] + start[1] + parts[:-1] * np.uint64(0x9E3779B97F4A7C15)
        places: Places = (edges[:-1] + _mixed(counter) % lengths).astype(np.int64)
    return places


class Sampler:
    """Takes samples of `max_elems` elements at most; all of a tensor that has no more.

    mode: "none" takes nothing, "head" the first elements in row-major order, "rand" elements from
    all over the tensor, which depend on the seed and the number of elements only.
    """

    def __init__(self, mode: SampleMode, max_elems: int | None = None, seed: int = 0) -> None:
        self.mode = mode
        self.max_elems = max_elems
        self.seed = seed
        self._kept: dict[tuple[torch.Size, torch.device], tuple[torch.Tensor, ...]] = {}

    def take(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """A copy with one dimension on the tensor's device, or None in mode "none". It is of uint8
        for types of less than a byte, such as uint4, which torch neither copies nor saves."""
        if self.mode == "none":
            return None
        source = as_bytes(tensor.detach())
        elements = source.numel()
        wanted = elements if self.max_elems is None else min(elements, self.max_elems)
        if wanted == elements:
            return _resolved(source).reshape(-1).clone()
        if self.mode == "head" and source.is_contiguous():
            return _resolved(source.view(-1)[:wanted]).clone()
        index = self._index(source, wanted)
        bits = _BITS_OF_SIZE.get(source.element_size())
        if bits is None or source.is_conj() or source.is_neg():
            return _resolved(source[index])
        return source.view(bits)[index].view(source.dtype)

    def _index(self, source: torch.Tensor, wanted: int) -> tuple[torch.Tensor, ...]:
        """Of each dimension, on the tensor's device; kept, so that a GPU gets it once a shape."""
        key = (source.shape, source.device)
        index = self._kept.get(key)
        if index is None:
            elements = source.numel()
            if self.mode == "head":
                places = np.arange(wanted, dtype=np.int64)
            else:
                places = random_places(elements, wanted, self.seed)
            axes = np.unravel_index(places, tuple(source.shape))
            index = tuple(torch.from_numpy(axis).to(source.device) for axis in axes)
            if len(self._kept) < _KEPT_MAX:
                self._kept[key] = index
        return index


def _resolved(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.resolve_conj().resolve_neg()
