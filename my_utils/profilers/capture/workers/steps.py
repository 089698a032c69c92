"""The steps, micro-batches and ranks that a configuration selects.

>>> even, odd = Steps(0, None, 2), Steps(1, 99, 2)
>>> last_in_a_row([even, odd], 10)
100
>>> is_endless([even, odd]), is_endless([even, Steps(1, None, 2)])
(False, True)
>>> Schedule(skip_first=1, wait=1, warmup=1, active=3, repeat=2).groups(12)
[(3, 5), (8, 10)]
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

# Strides whose pattern repeats later than this are walked step by step.
PERIOD_MAX = 100_000


@dataclass(frozen=True)
class Steps:
    """first, first + every, … up to last; None for no end."""

    first: int
    last: int | None
    every: int = 1

    def __contains__(self, step: int) -> bool:
        inside = step >= self.first and (self.last is None or step <= self.last)
        return inside and (step - self.first) % self.every == 0

    @property
    def last_chosen(self) -> int | None:
        """None for no end."""
        return None if self.last is None else self.last - (self.last - self.first) % self.every


@dataclass(frozen=True)
class Schedule:
    """Micro-batches in groups, by the fields of `torch.profiler.schedule`; `repeat` 0: up to the
    last."""

    skip_first: int
    wait: int
    warmup: int
    active: int
    repeat: int

    def groups(self, count: int) -> list[tuple[int, int]]:
        """The first and the last of each group, of `count` micro-batches."""
        lead = self.wait + self.warmup
        firsts = range(self.skip_first + lead, count, lead + self.active)
        chosen = firsts[: self.repeat] if self.repeat else firsts
        return [(first, min(first + self.active, count) - 1) for first in chosen]


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
    return _holds_all([steps for steps in chosen if steps.last is None])


def last_in_a_row(chosen: Sequence[Steps], step: int) -> int:
    """The last step of those in a row that begin with `step`, which is chosen. The row must end.

    A stretch in which the same of them apply is passed at once where they leave no step out.
    """
    while is_chosen(chosen, step + 1):
        step += 1
        here = [
            steps
            for steps in chosen
            if steps.first <= step and (steps.last is None or step <= steps.last)
        ]
        end = _end_of_stretch(chosen, step)
        if end is not None and _holds_all(here):
            step = end
    return step


def _end_of_stretch(chosen: Sequence[Steps], step: int) -> int | None:
    """The last step up to which the same of them apply; None for no end."""
    ends = [steps.first - 1 for steps in chosen if steps.first > step]
    ends += [steps.last for steps in chosen if steps.last is not None and steps.last >= step]
    return min(ends, default=None)


def _holds_all(chosen: Sequence[Steps]) -> bool:
    """Whether they leave no step out, wherever all of them apply."""
    if sum(1 / steps.every for steps in chosen) < 1 - 1e-9:
        return False
    period = math.lcm(*(steps.every for steps in chosen))
    if period > PERIOD_MAX:
        return any(steps.every == 1 for steps in chosen)
    return all(
        any((number - steps.first) % steps.every == 0 for steps in chosen)
        for number in range(period)
    )
