"""Finds the tensors in the inputs and outputs of a module.

>>> import torch
>>> tensors, values = find((torch.ones(2), {"mask": None, "scale": 2}))
>>> [path for path, _ in tensors], values
(['0'], {'1.mask': None, '1.scale': 2})
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import torch

Found = list[tuple[str, torch.Tensor]]

_DEPTH_MAX = 32  # also ends the walk through a container that holds itself
_TEXT_MAX = 200  # characters of a str that are worth keeping
_NUMBERS = (int, float, bool, type(None))


def find(value: Any) -> tuple[Found, dict[str, Any]]:
    """The tensors in `value` with the way to them, and the plain values beside them.

    Searches dicts, lists, tuples, named tuples, dataclasses, and types derived from them, such as
    the outputs of transformers. The path of `value` itself is "".
    """
    tensors: Found = []
    values: dict[str, Any] = {}
    _walk(value, "", tensors, values, 0)
    return tensors, values


def find_arguments(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Found, dict[str, Any]]:
    """The same for the arguments of a call: "0" is the first by position, a keyword its name."""
    if len(args) == 1 and type(args[0]) is torch.Tensor and not kwargs:  # by far most calls
        return [("0", args[0])], {}
    tensors: Found = []
    values: dict[str, Any] = {}
    for place, value in enumerate(args):
        _walk(value, str(place), tensors, values, 0)
    for name, value in kwargs.items():
        _walk(value, name, tensors, values, 0)
    return tensors, values


def _walk(value: Any, path: str, tensors: Found, values: dict[str, Any], depth: int) -> None:
    if isinstance(value, torch.Tensor):
        tensors.append((path, value))
    elif isinstance(value, _NUMBERS):
        values[path] = value if type(value) in _NUMBERS else _plain(value)
    elif isinstance(value, str):
        values[path] = str(value[:_TEXT_MAX])
    elif depth < _DEPTH_MAX:
        _walk_container(value, f"{path}." if path else "", tensors, values, depth + 1)
    else:
        values[path] = f"<{type(value).__name__}>"


def _plain(value: Any) -> Any:
    """Of a subclass of a number, such as torch's symbolic ones or an enumeration."""
    for kind in (bool, int, float):
        if isinstance(value, kind):
            return kind(value)
    return None


def _walk_container(
    value: Any, prefix: str, tensors: Found, values: dict[str, Any], depth: int
) -> None:
    if isinstance(value, Mapping):
        for key, item in value.items():
            _walk(item, f"{prefix}{key}", tensors, values, depth)
    elif isinstance(value, tuple) and hasattr(value, "_fields"):
        for name, item in zip(value._fields, value, strict=True):
            _walk(item, f"{prefix}{name}", tensors, values, depth)
    elif isinstance(value, list | tuple):
        for place, item in enumerate(value):
            _walk(item, f"{prefix}{place}", tensors, values, depth)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            _walk(getattr(value, field.name, None), f"{prefix}{field.name}", tensors, values, depth)
    else:
        values[prefix[:-1]] = f"<{type(value).__name__}>"
