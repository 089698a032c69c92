"""The steps, micro-batches and ranks that a configuration selects.

>>> even, odd = Steps(0, None, 2), Steps(1, 99, 2)
>>> last_in_a_row([even, odd], 10)
100
>>> is_endless([even, odd]), is_endless([even, Steps(1, None, 2)])
(False, True)
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Steps:
    """first, first + every, … up to last; None for no end."""

    first: int
    last: int | None
    every: int = 1

    def __contains__(self, step: int) -> bool:
        return self.spans(step) and (step - self.first) % self.every == 0

    def spans(self, step: int) -> bool:
        """Whether the step is from `first` to `last`, chosen or not."""
        return step >= self.first and (self.last is None or step <= self.last)

    @property
    def last_chosen(self) -> int | None:
        """None for no end."""
        return None if self.last is None else self.last - (self.last - self.first) % self.every


def ranks_together(chosen: Iterable[Sequence[int] | None]) -> list[int] | None:
    """The ranks of all of them; None where one has all ranks."""
    ranks: set[int] = set()
    for some in chosen:
        if some is None:
            return None
        ranks.update(some)
    return sorted(ranks)


def is_chosen(chosen: Sequence[Steps], step: int) -> bool:
    return any(step in steps for steps in chosen)


def is_endless(chosen: Sequence[Steps]) -> bool:
    """Whether from some step on every step is chosen."""
    endless = [steps for steps in chosen if steps.last is None]
    return bool(endless) and _row(endless, max(steps.first for steps in endless)) is None


def last_in_a_row(chosen: Sequence[Steps], step: int) -> int:
    """The last step of those in a row that begin with `step`, which is chosen. The row must end."""
    last = _row(chosen, step)
    assert last is not None
    return last


def _row(chosen: Sequence[Steps], step: int) -> int | None:
    """The last step of those in a row after `step`; None for no end.

    Where the same of them apply their pattern repeats: after one period without a gap there is
    none up to the end of that stretch.
    """
    while True:
        after = step + 1
        ends = [steps.first - 1 for steps in chosen if steps.first > after]
        ends += [steps.last for steps in chosen if steps.last is not None and steps.last >= after]
        end = min(ends, default=None)
        strides = [steps.every for steps in chosen if steps.spans(after)]
        period = 1 if 1 in strides else math.lcm(*strides)
        checked = step + period if end is None else min(step + period, end)
        for number in range(after, checked + 1):
            if not is_chosen(chosen, number):
                return number - 1
        if end is None:
            return None
        step = end
