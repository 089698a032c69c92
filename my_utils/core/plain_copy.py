"""Converts users' objects to values that `torch.load(weights_only=True)` reads.

>>> plain_copy({"note": "single step", 3: (1, 2.5)}, "extra")
{'note': 'single step', 3: (1, 2.5)}
"""

from __future__ import annotations

import dataclasses
import enum
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


_DEPTH_MAX = 64
_PLAIN: tuple[type[Any], ...] = (bool, int, float, complex, str, bytes)


def plain_copy(value: Any, name: str, depth: int = 0) -> Any:
    """`value` as what `weights_only` reads back: containers are copied, the rest is kept.

    Takes None, bool, int, float, complex, str, bytes, tensors (detached, with no more storage than
    their elements), torch's dtypes, devices and sizes, and dicts, lists, tuples and sets of those.
    Paths and enumerations become text and values; numpy's scalars Python's numbers, its arrays
    tensors; named tuples, dataclasses and other mappings dicts; empty bytes a bytearray. TypeError
    for anything else, with its place.
    """
    import torch

    if depth > _DEPTH_MAX:
        raise ValueError(f"{name} is nested deeper than {_DEPTH_MAX}, or holds itself")
    kind = type(value)
    if kind is bytes and not value:
        return bytearray()  # pickle writes the empty bytes as a call that weights_only refuses
    if value is None or kind in _PLAIN or kind in (torch.dtype, torch.device):
        return value
    if isinstance(value, torch.Tensor):
        return _plain_tensor(value, name)
    return _plain_container(value, name, depth)


def _plain_tensor(value: torch.Tensor, name: str) -> torch.Tensor:
    import torch

    detached = value.detach()
    if detached.is_sparse or detached.layout != torch.strided:
        return detached.clone()
    if type(detached) is not torch.Tensor:
        raise TypeError(f"{name} is a {type(value).__name__}, which such a file cannot hold")
    whole = detached.untyped_storage().nbytes() == detached.numel() * detached.element_size()
    return detached if whole else detached.clone()


def _plain_container(value: Any, name: str, depth: int) -> Any:
    def inner(item: Any, key: object) -> Any:
        return plain_copy(item, f"{name}[{key!r}]", depth + 1)

    kind = type(value)
    if isinstance(value, enum.Enum):
        return inner(value.value, "value")
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type | Mapping):
        return {
            item.name: inner(getattr(value, item.name), item.name)
            for item in dataclasses.fields(value)
        }
    if isinstance(value, Mapping):
        return {inner(key, key): inner(item, key) for key, item in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return {key: inner(item, key) for key, item in zip(value._fields, value, strict=True)}
    if kind.__name__ == "Size" and isinstance(value, tuple):
        return tuple(value)
    if isinstance(value, list | tuple):
        return (list if isinstance(value, list) else tuple)(
            inner(item, place) for place, item in enumerate(value)
        )
    if isinstance(value, set | frozenset):
        return {inner(item, item) for item in value}
    return _plain_number(value, name)


def _plain_number(value: Any, name: str) -> Any:
    """Subclasses of numbers and text, and what numpy has."""
    import torch

    for kind in _PLAIN:
        if isinstance(value, kind):
            return kind(value)
    home = type(value).__module__
    if home == "numpy" and hasattr(value, "dtype"):
        if getattr(value, "ndim", 0):
            return torch.from_numpy(value.copy())
        item = value.item()
        if isinstance(item, _PLAIN):
            return item
    raise TypeError(
        f"{name} is a {home}.{type(value).__qualname__}, which torch.load(weights_only=True) would "
        "refuse; give numbers, text, bytes, tensors, or dicts, lists, tuples and sets of them"
    )
