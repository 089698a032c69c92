"""Which steps of an attempt were done again by a later one."""

from __future__ import annotations

from collections.abc import Sequence

from ..verdict.rank_files import first_step
from .rank_times import RankTimes


def steps_in_vain(ranks: Sequence[RankTimes]) -> dict[int, tuple[int, int]]:
    """By attempt the first and the last of its steps that were done in vain. Where `my_utils run`
    counts the steps, each attempt begins at 0, and their numbers say nothing."""
    found: dict[int, tuple[int, int]] = {}
    for one in ranks:
        if one.is_automatic:
            continue
        began = [
            (number, first_step(attempt.steps), int(attempt.steps[-1]))
            for number, attempt in one.attempts.items()
            if len(attempt.steps)
        ]
        for at, (number, _, last) in enumerate(began):
            again = min((first for _, first, _ in began[at + 1 :]), default=last + 1)
            if again <= last:
                first, end = found.get(number, (again, last))
                found[number] = min(first, again), max(end, last)
    return found
