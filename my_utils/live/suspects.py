"""Which ranks hold a run up.

In a run that hangs, most ranks wait in the same stage for a few that do something else. So the
suspects are the ranks that are gone, that are behind, or that are in another stage.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from ..run_files.state import Rank

_Reasons = dict[str, list[tuple[str, str]]]  # of each label: kind and text


@dataclass(frozen=True)
class Suspect:
    """A rank that stands out, with the reasons, the weightiest first, and a word for each of them:
    "dead", "silent", "ended", "behind", "elsewhere" or "longest"."""

    rank: Rank
    kinds: tuple[str, ...]
    reasons: tuple[str, ...]


def missing_ranks(ranks: Sequence[Rank]) -> list[int]:
    """The ranks that the run should have, by its world size, and that left no file."""
    size = max((rank.world_size for rank in ranks if not rank.left_before), default=0)
    seen = {rank.rank for rank in ranks}
    return [number for number in range(size) if number not in seen]


def find_suspects(ranks: Sequence[Rank], stuck_after_s: float) -> list[Suspect]:
    """The ranks that stand out, the most suspicious first. Workers are left out: they come and go
    as their ranks do."""
    main = [rank for rank in ranks if rank.worker == 0]
    alive = [rank for rank in main if rank.alive]
    reasons: _Reasons = {rank.label: [] for rank in main}
    _look_for_the_lost(main, reasons)
    _look_for_the_finished(main, reasons, stuck_after_s)
    _look_for_the_late(alive, reasons, stuck_after_s)
    _look_for_the_lonely(alive, reasons, stuck_after_s)
    found = []
    for rank in main:
        kinds, texts = zip(*reasons[rank.label], strict=True) if reasons[rank.label] else ((), ())
        if kinds:
            found.append(Suspect(rank, kinds, texts))
    found.sort(key=lambda suspect: _weight(suspect.rank))
    return found


def _weight(rank: Rank) -> tuple[int, int, float]:
    order = {"dead": 0, "silent": 1}
    step = rank.step
    return order.get(rank.state, 2), -1 if step is None else step, -(rank.still_s or 0.0)


def _look_for_the_lost(ranks: Sequence[Rank], reasons: _Reasons) -> None:
    for rank in ranks:
        if rank.state == "dead":
            text = "its process is gone and did not end in good order"
            if rank.left_before:
                text += "; it was not seen after the other ranks began"
            reasons[rank.label].append(("dead", text))
        elif rank.state == "silent":
            age = "" if rank.beat_age_s is None else f" for {describe_seconds(rank.beat_age_s)}"
            text = f"no sign of life{age}: stopped, cut off, or its log directory does not answer"
            reasons[rank.label].append(("silent", text))


def _look_for_the_finished(ranks: Sequence[Rank], reasons: _Reasons, stuck_after_s: float) -> None:
    """A few ranks that have ended while most still wait: they had fewer steps than the others."""
    ended = [rank for rank in ranks if rank.state == "closed"]
    stuck = [rank for rank in ranks if rank.alive and (rank.still_s or 0.0) >= stuck_after_s]
    if len(ended) < len(stuck):
        for rank in ended:
            text = f"it ended in good order while {len(stuck)} of {len(ranks)} ranks wait"
            reasons[rank.label].append(("ended", text))


def _look_for_the_late(alive: Sequence[Rank], reasons: _Reasons, stuck_after_s: float) -> None:
    """A rank may be one step behind in a healthy run too, but not for long."""
    steps = {rank.label: rank.step for rank in alive}
    furthest = max((step for step in steps.values() if step is not None), default=None)
    if furthest is None:
        return
    for rank in alive:
        step = steps[rank.label]
        behind = furthest - step if step is not None else 0
        if behind > 1 or (behind == 1 and (rank.still_s or 0.0) >= stuck_after_s):
            text = "1 step" if behind == 1 else f"{behind} steps"
            text += f" behind the furthest rank, which is at {furthest}"
            reasons[rank.label].append(("behind", text))


def _look_for_the_lonely(alive: Sequence[Rank], reasons: _Reasons, stuck_after_s: float) -> None:
    """Where most ranks have waited in one place for long, those that are elsewhere hold them up."""
    stuck = [rank for rank in alive if (rank.still_s or 0.0) >= stuck_after_s]
    if not stuck or len(alive) < 2:
        return
    stacks = {rank.label: rank.stack for rank in alive}
    (crowd, count), *_ = Counter(stacks[rank.label] for rank in stuck).most_common(1)
    others = [rank for rank in alive if stacks[rank.label] != crowd]
    if 2 * count > len(alive):
        for rank in others:
            text = (
                f"in {where(rank)} while {count} of {len(alive)} ranks wait in {stack_text(crowd)}"
            )
            reasons[rank.label].append(("elsewhere", text))
    elif others:
        longest = max(stuck, key=lambda rank: rank.still_s or 0.0)
        place = (longest.stack[-1] or "(name unknown)") if longest.stack else "no stage"
        text = (
            f"in {place} for {describe_seconds(longest.still_s or 0.0)}, longer than any other rank"
        )
        reasons[longest.label].append(("longest", text))


def where(rank: Rank) -> str:
    """The open stages of the main thread, for people."""
    return stack_text(rank.stack)


def stack_text(stack: Sequence[str]) -> str:
    """Open stages, for people.

    >>> stack_text(("iter", "")), stack_text(())
    ('iter > (name unknown)', 'no stage')
    """
    return " > ".join(part or "(name unknown)" for part in stack) or "no stage"


def describe_seconds(seconds: float) -> str:
    """A duration for people.

    >>> [describe_seconds(seconds) for seconds in (1e-6, 0.0123, 3.21, 75, 119.7, 7e4)]
    ['1.0 µs', '12.3 ms', '3.2 s', '1 min 15 s', '2 min 0 s', '19 h 26 min']
    """
    if seconds < 0.001:
        return f"{seconds * 1e6:.1f} µs"
    if seconds < 1:
        return f"{seconds * 1000:.1f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    return f"{minutes // 60} h {minutes % 60} min"
