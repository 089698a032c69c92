"""In which tensors, where and how far what came differs from a golden file."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from ..tensors import compare
from ..tensors.diverge.tensors import Rules, check_tensors
from ..tensors.recordings.recording import TraceTensorMeta
from ..tensors.recordings.sample import random_places
from ..tensors.same import difference_lines
from ..tensors.ulp import ulps_between
from .golden_file import GoldenTensor, part_edges

_FIGURES = ("mean", "std", "min", "max", "nans", "pos_infs", "neg_infs")


def differences(
    old: dict[str, GoldenTensor], new: dict[str, GoldenTensor], tolerance: float | None
) -> dict[str, list[str]]:
    """Lines of text by the names of the tensors that differ."""
    texts = {key: ["is no longer there"] for key in old if key not in new}
    for key, tensor in new.items():
        if key not in old:
            texts[key] = ["is new"]
        elif lines := _difference(old[key], tensor, tolerance):
            texts[key] = lines
    return texts


def _difference(old: GoldenTensor, new: GoldenTensor, tolerance: float | None) -> list[str]:
    """Empty where both agree."""
    if (old.dtype, old.shape) != (new.dtype, new.shape):
        return [f"is {new.dtype} {new.shape}, was {old.dtype} {old.shape}"]
    if old.digest == new.digest:
        return []
    if tolerance is not None:
        share = tolerance * float(old.stats["abs_max"])
        rules = Rules(rtol=0.0, atol=share if math.isfinite(share) else 0.0)
        check = check_tensors("", _as_recorded(old), _as_recorded(new), rules)
        if check.verdict.agrees:
            return []
    return list(_lines(old, new, tolerance))


def _as_recorded(tensor: GoldenTensor) -> TraceTensorMeta:
    return TraceTensorMeta(
        "", tensor.shape, tensor.dtype, hash=tensor.digest, stats=tensor.stats, sample=tensor.sample
    )


def _lines(old: GoldenTensor, new: GoldenTensor, tolerance: float | None) -> Iterator[str]:
    if not old.parts:  # the sample is all of it
        whole = new.sample.reshape(new.shape), old.sample.reshape(old.shape)
        found = compare(*whole, rtol=0.0, atol=0.0, equal_nan=True, max_mismatches=1)
        lines = list(difference_lines(found, *whole, words="was"))
        yield from lines if found.mismatches else ["other bits of equal values (-0.0, NaN)"]
    else:
        yield f"{new.dtype} {new.shape}, other bits; {_place(old, new)}"
        yield _in_sample(old, new)
    if tolerance is not None:
        yield f"allowed: {tolerance:g} of the largest value, {float(old.stats['abs_max']):.6g}"
    was, now = ({name: f"{one.stats[name]:.6g}" for name in _FIGURES} for one in (old, new))
    moved = [f"{name} {now[name]}, was {was[name]}" for name in _FIGURES if now[name] != was[name]]
    if moved:
        yield "; ".join(moved)


def _place(old: GoldenTensor, new: GoldenTensor) -> str:
    """In which elements the digests of the parts differ."""
    differ = [at for at, pair in enumerate(zip(old.parts, new.parts, strict=True))
              if pair[0] != pair[1]]  # fmt: skip
    if not differ:
        return "in no part alone"
    edges = part_edges(math.prod(new.shape))
    begin, end = edges[differ[0]], edges[differ[-1] + 1] - 1
    ends = [tuple(map(int, np.unravel_index(at, new.shape))) for at in (begin, end)]
    return f"{len(differ)} of {len(old.parts)} parts, from {ends[0]} to {ends[1]}"


def _in_sample(old: GoldenTensor, new: GoldenTensor) -> str:
    found = compare(new.sample, old.sample, rtol=0.0, atol=0.0, equal_nan=True, max_mismatches=1)
    if not found.mismatches:
        return f"none of {found.elements} sampled elements differs"
    at = found.first[0][0] if found.max_abs_index is None else found.max_abs_index
    values = [one.sample[at].item() for one in (new, old)]
    places = random_places(math.prod(new.shape), found.elements, 0)
    index = tuple(map(int, np.unravel_index(int(places[at]), new.shape)))
    steps = ulps_between(values[0], values[1], new.dtype)
    far = f" ({steps:,} ulp)" if steps is not None else ""
    return (
        f"{found.mismatches} of {found.elements} sampled elements differ, most by "
        f"{found.max_abs:.3g}{far} at {index}: {values[0]!r}, was {values[1]!r}"
    )
