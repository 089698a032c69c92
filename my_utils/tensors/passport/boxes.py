"""Boxes of a tensor: whether they tile it, and where they are, in words.

>>> halves = [Box((0, 0), (2, 8)), Box((2, 0), (2, 8))]
>>> gaps(halves[:1], (4, 8)) == halves[1:]
True
>>> place_text(halves[1], (4, 8))
'rows 2-3'
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from math import prod
from typing import NamedTuple

GREEDY_MAX = 1024  # boxes of which several tilings are made; the time grows with the square
GAPS_MAX = 64
VISITS_MAX = 4_000_000  # of boxes while gaps are looked for; a grid of n boxes has about 2 n


class Box(NamedTuple):
    """at: its first index, one number a dimension. size: its shape."""

    at: tuple[int, ...]
    size: tuple[int, ...]

    @property
    def numel(self) -> int:
        """The number of elements."""
        return prod(self.size)

    def end(self, dim: int) -> int:
        return self.at[dim] + self.size[dim]

    def overlap(self, other: Box) -> Box | None:
        """What both have; None if that is nothing."""
        at = tuple(map(max, self.at, other.at))
        ends = [min(self.end(dim), other.end(dim)) for dim in range(len(at))]
        size = tuple(end - begin for begin, end in zip(at, ends, strict=True))
        return Box(at, size) if all(length > 0 for length in size) else None


def whole_of(shape: Sequence[int]) -> Box:
    return Box((0,) * len(shape), tuple(shape))


def gaps(boxes: Sequence[Box], shape: Sequence[int]) -> list[Box]:
    """The parts of the tensor that are in no box, at most `GAPS_MAX` of them. ValueError where too
    many boxes overlap to look for them."""
    filled = [box for box in boxes if box.numel]
    found = _gaps(filled, whole_of(shape), 0, _Visits()) if prod(shape) else iter(())
    return list(itertools.islice(_joined(found), GAPS_MAX))


class _Visits:
    def __init__(self) -> None:
        self._left = VISITS_MAX

    def count(self, boxes: int) -> None:
        self._left -= boxes
        if self._left < 0:
            raise ValueError("its parts overlap in too many ways")


def _gaps(boxes: list[Box], region: Box, dim: int, visits: _Visits) -> Iterator[Box]:
    """Cuts the region into slabs wherever a box begins or ends along `dim`."""
    if not boxes:
        yield region
        return
    if dim == len(region.at):
        return
    visits.count(len(boxes))
    begin, end = region.at[dim], region.end(dim)
    edges = {begin, end, *(box.at[dim] for box in boxes), *(box.end(dim) for box in boxes)}
    waiting = sorted(boxes, key=lambda box: box.at[dim], reverse=True)
    here: list[Box] = []
    for low, high in itertools.pairwise(sorted(edges)):
        visits.count(len(here))
        here = [box for box in here if box.end(dim) > low]
        while waiting and waiting[-1].at[dim] <= low:
            here.append(waiting.pop())
        slab = Box(
            (*region.at[:dim], low, *region.at[dim + 1 :]),
            (*region.size[:dim], high - low, *region.size[dim + 1 :]),
        )
        yield from _gaps(here, slab, dim + 1, visits)


def _joined(boxes: Iterator[Box]) -> Iterator[Box]:
    """Neighbours along the first dimension become one."""
    last: Box | None = None
    for box in boxes:
        if (
            last is not None
            and last.at
            and (last.at[1:], last.size[1:], last.end(0)) == (box.at[1:], box.size[1:], box.at[0])
        ):
            last = Box(last.at, (last.size[0] + box.size[0], *last.size[1:]))
            continue
        if last is not None:
            yield last
        last = box
    if last is not None:
        yield last


def tilings(boxes: Sequence[Box], shape: Sequence[int]) -> list[list[Box]]:
    """Sets of boxes each of which fills the tensor once. Boxes that are left over are in none.

    Where all boxes are one tiling, which the count of elements says, that is found in one pass;
    several are found one after the other, each from its first index on, large boxes first.
    """
    wanted = prod(shape)
    filled = sorted((box for box in boxes if box.numel), key=lambda box: (box.at, -box.numel))
    have = sum(box.numel for box in filled)
    if have == wanted:
        return [] if gaps(filled, shape) else [filled]
    if have < wanted or len(filled) > GREEDY_MAX:
        return []
    found = []
    while filled:
        chosen: list[Box] = []
        rest: list[Box] = []
        for box in filled:
            is_free = all(box.overlap(other) is None for other in chosen)
            (chosen if is_free else rest).append(box)
        if sum(box.numel for box in chosen) == wanted:
            found.append(chosen)
        filled = rest
    return found


# --- in words ---


def place_text(box: Box, shape: Sequence[int]) -> str:
    """Where a box is: "rows 4-7", "rows 4-7, columns 0-15"; "" for all of the tensor."""
    names = {1: ["elements"], 2: ["rows", "columns"]}.get(
        len(shape), ["rows", *(f"dimension {dim}:" for dim in range(1, len(shape)))]
    )
    return ", ".join(
        f"{names[dim]} {_span(box.at[dim], box.end(dim))}"
        for dim in range(len(shape))
        if box.size[dim] < shape[dim]
    )


def _span(begin: int, end: int) -> str:
    return str(begin) if end == begin + 1 else f"{begin}-{end - 1}"


def box_of_bytes(begin: int, end: int, shape: Sequence[int], item_bytes: int) -> Box:
    """The smallest box that holds the bytes from `begin` to before `end` of the row-major tensor:
    whole rows (of one dimension: elements), or, where all are in one row, a part of it.

    >>> box_of_bytes(4096, 8192, (900, 8), 4), box_of_bytes(4096, 8192, (900, 5000), 4)
    (Box(at=(128, 0), size=(128, 8)), Box(at=(0, 1024), size=(1, 1024)))
    """
    first, last = begin // item_bytes, (end - 1) // item_bytes
    at, size = [], []
    for dim, length in enumerate(shape):
        inner = prod(shape[dim + 1 :])
        low, high = first // inner, min(last // inner, length - 1)
        at.append(low)
        size.append(high - low + 1)
        if high > low:
            break
        first, last = first - low * inner, last - low * inner
    rest = shape[len(at) :]
    return Box((*at, *(0 for _ in rest)), (*size, *rest))
