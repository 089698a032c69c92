"""Reads and writes ranges of steps and of ranks, in one place.

With a colon the end is left out, as in a slice: `10:20` is 10 to 19. With a dash it is in: `10-19`.

>>> parse_steps("10:20") == parse_steps("10-19") == (10, 20)
True
>>> rank_ranges("0,3-5")
((0, 0), (3, 5))
>>> parse_steps("10:x")
Traceback (most recent call last):
    ...
ValueError: steps must be a step or a range such as 10:20 or 10-19, not '10:x'
"""

from __future__ import annotations

import re

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any


Ranges = tuple[tuple[int, int], ...]
"""First and last of each range, both included."""

RANK_MAX = 2**31 - 1
SET_MAX = 1_000_000
STEP_MIN, STEP_MAX = -(2**63), 2**63 - 1

_INCLUSIVE = re.compile(r"\s*(\d+)\s*-\s*(\d+)\s*", re.ASCII)
_RANKS = re.compile(r"\s*(\d{1,10})\s*(?:-\s*(\d{1,10})\s*)?", re.ASCII)


# --- steps ---


def step_slice(text: str) -> slice | None:
    """The steps `7`, `10-19`, `10:20`, `10:`, `:20`, `10:20:2` as a slice, which may be empty; None
    for anything else."""
    inclusive = _INCLUSIVE.fullmatch(text)
    if inclusive is not None:
        return slice(int(inclusive[1]), int(inclusive[2]) + 1)
    try:
        numbers = [int(bound) if bound.strip() else None for bound in text.split(":")]
    except ValueError:
        return None
    if len(numbers) == 1 and numbers[0] is not None:
        return slice(numbers[0], numbers[0] + 1)
    return slice(*numbers) if 2 <= len(numbers) <= 3 else None


def parse_steps(text: str, name: str = "steps", *, bounded: bool = False) -> tuple[int, int]:
    """The first step and the one after the last; without a bound, the least and the greatest.

    bounded: both ends must be given.

    Raises ValueError for an empty range, for one with a stride, and if it is not a range.
    """
    found = step_slice(text)
    if found is None or found.step is not None or (bounded and None in (found.start, found.stop)):
        kind = "a step or a range with both ends" if bounded else "a step or a range"
        raise ValueError(f"{name} must be {kind} such as 10:20 or 10-19, not {text!r:.200}")
    begin = STEP_MIN if found.start is None else found.start
    end = STEP_MAX if found.stop is None else found.stop
    if end <= begin:
        raise ValueError(f"{name} must hold a step, not be an empty range of steps: {text!r:.200}")
    if begin < STEP_MIN or end > STEP_MAX:
        raise ValueError(f"{name} must be numbers of 64 bits, not {text!r:.200}")
    return begin, end


# --- ranks ---


def rank_ranges(text: str, name: str = "ranks") -> Ranges:
    """Ranges from a list such as `0,3-7`, as they are there. ValueError for anything else."""
    ranges = []
    for part in text.split(","):
        match = _RANKS.fullmatch(part)
        if match is None:
            raise ValueError(f"{name} must be numbers and ranges such as 0,3-7, not {text!r:.200}")
        low, high = int(match[1]), int(match[2] or match[1])
        if not low <= high <= RANK_MAX:
            raise ValueError(f"{name} must rise from 0 up, as in 0,3-7, not {text!r:.200}")
        ranges.append((low, high))
    return tuple(ranges)


def parse_members(text: str) -> tuple[int, ...]:
    """The ranks that a row names as those that meet; none for all. What cannot be read, and more
    than any run has, mean all.

    >>> parse_members("0,3-5"), parse_members("0-2000000000"), parse_members("x")
    ((0, 3, 4, 5), (), ())
    """
    try:
        ranges = rank_ranges(text)
    except ValueError:
        return ()
    if sum(high - low + 1 for low, high in ranges) > SET_MAX:
        return ()
    return tuple(rank for low, high in ranges for rank in range(low, high + 1))


def parse_ranks(text: str, name: str = "ranks") -> set[int]:
    """The numbers of a list such as `0,3-7`.

    >>> sorted(parse_ranks("0,3-5"))
    [0, 3, 4, 5]
    """
    numbers: set[int] = set()
    for low, high in rank_ranges(text, name):
        if high - low >= SET_MAX:
            part = ranges_text([(low, high)])
            raise ValueError(f"{name} must be at most {SET_MAX:,} numbers a range, not {part!r}")
        numbers.update(range(low, high + 1))
    return numbers


# --- both ---


def as_ranges(numbers: Iterable[int]) -> Ranges:
    """The fewest ranges that hold these numbers.

    >>> as_ranges([7, 0, 3, 4])
    ((0, 0), (3, 4), (7, 7))
    """
    ranges: list[tuple[int, int]] = []
    for number in sorted(set(numbers)):
        if ranges and ranges[-1][1] == number - 1:
            ranges[-1] = (ranges[-1][0], number)
        else:
            ranges.append((number, number))
    return tuple(ranges)


def ranges_text(
    ranges: Iterable[tuple[int, int]], most: int | None = None, *, separator: str = ","
) -> str:
    """`rank_ranges` backwards, `most` ranges of it.

    >>> ranges_text(as_ranges([0, 1, 2, 5, 7, 8])), ranges_text(as_ranges([1, 3, 5]), most=2)
    ('0-2,5,7-8', '1,3,…')
    """
    parts = [str(low) if low == high else f"{low}-{high}" for low, high in ranges]
    return separator.join(parts if most is None or len(parts) <= most else [*parts[:most], "…"])


def ranks_text(ranks: Iterable[int], most: int | None = None) -> str:
    """
    >>> ranks_text([3]), ranks_text([0, 1, 2, 5]), ranks_text([0, 2, 4], most=2)
    ('rank 3', 'ranks 0-2,5', 'ranks 0,2,…')
    """
    numbers = sorted(ranks)
    word = "rank" if len(numbers) == 1 else "ranks"
    return f"{word} {ranges_text(as_ranges(numbers), most)}"


def checked(parse: Callable[[str], Any]) -> Callable[[str], Any]:
    """The same as a type of argparse, which then says what ValueError said."""
    import argparse

    def check(text: str) -> Any:
        try:
            return parse(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return check
