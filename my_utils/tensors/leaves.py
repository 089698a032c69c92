"""Lists what nested containers hold, by the way to it as Python writes it."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

_DEPTH_MAX = 64


def leaves(value: Any, path: str = "", depth: int = 0) -> Iterator[tuple[str, Any]]:
    """The path and the value of all that is no container, and of empty containers, in order.

    Containers are mappings, lists, tuples and dataclasses. The path of `value` itself is `path`.
    Each path comes once. ValueError for a container that is nested deeper than 64, as one that
    holds itself.

    >>> list(leaves({"loss": 0.5, "out": (1, [2], [])}))
    [("['loss']", 0.5), ("['out'][0]", 1), ("['out'][1][0]", 2), ("['out'][2]", [])]
    """
    items = _items(value)
    if not items:
        yield path, value
        return
    if depth == _DEPTH_MAX:
        raise ValueError(f"{path[:60]}… is nested deeper than {_DEPTH_MAX}, or holds itself")
    for name, item in items:
        yield from leaves(item, path + name, depth + 1)


def _items(value: Any) -> list[tuple[str, Any]] | None:
    """None for what is no container."""
    if isinstance(value, Mapping):
        return [(f"[{key}]", item) for key, item in zip(_texts(value), value.values(), strict=True)]
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return [(f".{name}", item) for name, item in zip(value._fields, value, strict=True)]
    if isinstance(value, (list, tuple)):
        return [(f"[{place}]", item) for place, item in enumerate(value)]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = dataclasses.fields(value)
        return [(f".{field.name}", getattr(value, field.name)) for field in fields]
    return None


def _texts(keys: Mapping[Any, Any]) -> list[str]:
    """Of each key; those that print alike, such as two Parameters, are counted.

    >>> _texts({float("nan"): 0, "a": 0, float("nan"): 0})
    ['nan', "'a'", 'nan (2)']
    """
    seen: Counter[str] = Counter()
    texts = []
    for text in map(repr, keys):
        seen[text] += 1
        texts.append(f"{text} ({seen[text]})" if seen[text] > 1 else text)
    return texts


def is_empty_container(value: Any) -> bool:
    """Whether `leaves` gives it because there is nothing in it."""
    return _items(value) == []
