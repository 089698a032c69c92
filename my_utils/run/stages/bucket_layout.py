"""The contents of the buckets of DDP models, from DDP itself.

DDP builds its buckets anew after the first backward, in the order in which gradients came, and
says so in its logging data. With `find_unused_parameters` it keeps those that it began with, and
does not say what is in them: they are worked out as DDP does it.
"""

from __future__ import annotations

import re
import weakref
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ... import _core

BUCKETS_MAX = 512
_NAMED = 2  # modules, of those that are not a range
_NUMBERED = re.compile(r"^(.*?)\.?(\d+)(?:\.|$)")


@dataclass(frozen=True)
class Bucket:
    """parameters: weak references, so that a model can go."""

    parameters: tuple[weakref.ref[Any], ...]
    bytes: int
    modules: str


@dataclass(frozen=True)
class Layout:
    """The buckets of all models, in the order of the models, then in that of their reduction."""

    buckets: tuple[Bucket, ...]

    def __repr__(self) -> str:
        return f"Layout({len(self.buckets)} buckets)"

    def rows(self) -> Iterator[Mapping[str, object]]:
        """What the rows `my_utils.bucket` hold."""
        for number, bucket in enumerate(self.buckets):
            yield {
                "bucket": number,
                "bytes": bucket.bytes,
                "parameters": len(bucket.parameters),
                "modules": bucket.modules,
            }

    def times(self) -> _core.BucketTimes | None:
        """Measures backwards, without hooks so far; None when a parameter is gone."""
        parameters = tuple(one() for bucket in self.buckets for one in bucket.parameters)
        if any(one is None for one in parameters):
            return None
        numbers = tuple(
            number for number, bucket in enumerate(self.buckets) for _ in bucket.parameters
        )
        return _core.BucketTimes(parameters, numbers)


def read_layout(models: Sequence[Any]) -> Layout | None:
    """None as long as a model has not built its buckets anew, or where it says nothing of them."""
    buckets: list[Bucket] = []
    for model in models:
        found = _read_buckets(model)
        if not found:
            return None
        buckets += found
    return Layout(tuple(buckets)) if buckets else None


def _read_buckets(model: Any) -> list[Bucket]:
    """[] where they are not known, or not yet."""
    try:
        parameters = _reduced(model)
        return [
            _bucket([parameters[at] for at in sorted(indices)])
            for indices in _find_indices(model, [one for _, one in parameters])
        ]
    except (AttributeError, IndexError, KeyError, RuntimeError, TypeError, ValueError):
        return []  # another torch: not measured


def _reduced(model: Any) -> list[tuple[str, Any]]:
    """The parameters that DDP reduces, in its order, with their names."""
    left_out = model.parameters_to_ignore
    return [
        (name, one)
        for name, one in model.module.named_parameters()
        if one.requires_grad and name not in left_out
    ]


def _bucket(parameters: Sequence[tuple[str, Any]]) -> Bucket:
    """parameters: with their names, in the order of the model."""
    return Bucket(
        tuple(weakref.ref(one) for _, one in parameters),
        sum(one.numel() * one.element_size() for _, one in parameters),
        module_text([name.rpartition(".")[0] for name, _ in parameters]),
    )


def _find_indices(model: Any, parameters: Sequence[Any]) -> list[list[int]]:
    """Of each bucket the places of its parameters; [] as long as DDP will build others."""
    said = model._get_ddp_logging_data()
    if said.get("has_rebuilt_buckets"):
        text = said["rebuilt_per_bucket_param_indices"]
        return [[int(word) for word in bucket.split()] for bucket in text.split(",")]
    if not model.find_unused_parameters or model.static_graph:
        return []
    # As DDP and its reducer do it at first: a small bucket, and the last layers before the first.
    distributed: Any = torch.distributed
    cap = model.bucket_bytes_cap
    first = min(distributed._DEFAULT_FIRST_BUCKET_BYTES, cap)
    limits = [cap] if first == cap else [first, cap]
    found, _ = distributed._compute_bucket_assignment_by_size(list(parameters), limits)
    return [list(bucket) for bucket in reversed(found)]


def module_text(modules: Sequence[str]) -> str:
    """Names of modules in the order of the model, short enough for a line.

    >>> module_text(["layers.15.q", "layers.15.k", "layers.16.q", "layers.17"])
    'layers 15-17'
    >>> module_text(["embed", "layers.0.q", "head", "norm"])
    'embed … norm'
    >>> module_text(["head"])
    'head'
    """
    unique = list(dict.fromkeys(modules))
    places = [_NUMBERED.match(name) for name in unique]
    prefixes = {place and place[1] for place in places}
    if len(unique) > 1 and None not in prefixes and len(prefixes) == 1:
        numbers = sorted({int(place[2]) for place in places if place})
        prefix = prefixes.pop() or "modules"
        if len(numbers) == 1:
            return f"{prefix} {numbers[0]}"
        if numbers[-1] - numbers[0] == len(numbers) - 1:
            return f"{prefix} {numbers[0]}-{numbers[-1]}"
    if len(unique) <= _NAMED:
        return ", ".join(name or "the model itself" for name in unique)
    return f"{unique[0]} … {unique[-1]}"
