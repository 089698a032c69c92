"""Which steps of an attempt were done again by a later one."""

from __future__ import annotations

from collections.abc import Sequence

from ..verdict.rank_files import first_step
from .rank_times import AttemptTimes, RankTimes, attempt_numbers


def steps_in_vain(ranks: Sequence[RankTimes]) -> tuple[dict[int, tuple[int, int]], list[str]]:
    """By attempt the first and the last of its steps that were done in vain; and sentences on what
    is not known.

    Where a script numbers its steps, they come again. Where `my_utils run` counts them from 0 in
    each attempt, the checkpoint with which an attempt began says which steps of earlier ones it
    goes on from: those after it was saved were in vain. Another program does nothing again.
    """
    if not ranks[0].is_automatic:
        return _by_numbers(ranks), []
    return _by_checkpoints(ranks)


def _by_numbers(ranks: Sequence[RankTimes]) -> dict[int, tuple[int, int]]:
    found: dict[int, tuple[int, int]] = {}
    for one in ranks:
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


def _by_checkpoints(
    ranks: Sequence[RankTimes],
) -> tuple[dict[int, tuple[int, int]], list[str]]:
    found: dict[int, tuple[int, int]] = {}
    notes = []
    numbers = attempt_numbers(ranks)
    programs = {number: _program(ranks, number) for number in numbers}
    for at, number in enumerate(numbers):
        before = [one for one in numbers[:at] if programs[one] == programs[number]]
        if not before:
            continue
        origin = _origin(ranks, before, number)
        if origin is None:
            notes.append(
                f"attempt {number} began with no checkpoint that an earlier one is known to have "
                "saved: what it did again is not known"
            )
            continue
        since, step = origin
        for earlier in before:
            first = step + 1 if earlier == since else 0
            last = max((int(one.steps[-1]) for one in with_steps(ranks, earlier)), default=-1)
            if earlier >= since and first <= last:
                known = found.get(earlier, (first, last))[0]
                found[earlier] = min(first, known), last
    return found, notes


def _program(ranks: Sequence[RankTimes], number: int) -> str:
    of_ranks = (one.attempts[number].program for one in ranks if number in one.attempts)
    return next(filter(None, of_ranks), "")


def _origin(
    ranks: Sequence[RankTimes], earlier: Sequence[int], number: int
) -> tuple[int, int] | None:
    """The attempt and the step after which the checkpoint was saved with which one began: the last
    one that is known."""
    restored: set[str] = set()
    for one in ranks:
        if number in one.attempts:
            restored |= one.attempts[number].restored
    saved = [
        (each, step)
        for one in ranks
        for each in earlier
        if each in one.attempts
        for keys, step in one.attempts[each].saved
        if keys & restored
    ]
    return max(saved, default=None)


def with_steps(ranks: Sequence[RankTimes], number: int) -> list[AttemptTimes]:
    """An attempt of the ranks that did a step in it."""
    there = [one.attempts[number] for one in ranks if number in one.attempts]
    return [one for one in there if len(one.steps)]
