"""Which ranks hold a run up.

In a run that hangs most ranks wait, in the same stage, for the few that do something else. So the
ranks that matter are those that are gone, those that are behind, and those that are elsewhere.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from ._live_ranks import Rank


@dataclass(frozen=True)
class Suspect:
    """A rank that stands out, with the reasons, the weightiest first."""

    rank: Rank
    reasons: tuple[str, ...]


def missing_ranks(ranks: Sequence[Rank]) -> list[int]:
    """The ranks that the run should have, by its world size, and that left no file."""
    size = max((rank.world_size for rank in ranks), default=0)
    seen = {rank.rank for rank in ranks}
    return [number for number in range(size) if number not in seen]


def find_suspects(ranks: Sequence[Rank], stuck_after_s: float) -> list[Suspect]:
    """The ranks that stand out, the most suspicious first. Workers are left out: they come and go
    as their ranks do."""
    main = [rank for rank in ranks if rank.worker == 0]
    alive = [rank for rank in main if rank.alive]
    reasons: dict[str, list[str]] = {rank.label: [] for rank in main}
    _look_for_the_lost(main, reasons)
    _look_for_the_late(alive, reasons, stuck_after_s)
    _look_for_the_lonely(alive, reasons, stuck_after_s)
    found = [Suspect(rank, tuple(reasons[rank.label])) for rank in main if reasons[rank.label]]
    found.sort(key=lambda suspect: _weight(suspect.rank))
    return found


def _weight(rank: Rank) -> tuple[int, int, float]:
    order = {"dead": 0, "silent": 1}
    step = rank.step
    return order.get(rank.state, 2), -1 if step is None else step, -(rank.open_s or 0.0)


def _look_for_the_lost(ranks: Sequence[Rank], reasons: dict[str, list[str]]) -> None:
    for rank in ranks:
        if rank.state == "dead":
            reasons[rank.label].append("its process is gone and did not end in good order")
        elif rank.state == "silent":
            age = "" if rank.beat_age_s is None else f" for {describe_seconds(rank.beat_age_s)}"
            reasons[rank.label].append(
                f"no sign of life{age}: stopped, cut off, or its log directory does not answer"
            )


def _look_for_the_late(
    alive: Sequence[Rank], reasons: dict[str, list[str]], stuck_after_s: float
) -> None:
    """One step behind is how a healthy run looks, unless it lasts."""
    furthest = max((rank.step for rank in alive if rank.step is not None), default=None)
    if furthest is None:
        return
    for rank in alive:
        behind = furthest - rank.step if rank.step is not None else 0
        if behind > 1 or (behind == 1 and (rank.open_s or 0.0) >= stuck_after_s):
            steps = "1 step" if behind == 1 else f"{behind} steps"
            reasons[rank.label].append(f"{steps} behind the furthest rank, which is at {furthest}")


def _look_for_the_lonely(
    alive: Sequence[Rank], reasons: dict[str, list[str]], stuck_after_s: float
) -> None:
    """Where most ranks have waited in one place for long, those that are elsewhere hold them up."""
    stuck = [rank for rank in alive if (rank.open_s or 0.0) >= stuck_after_s]
    if not stuck or len(alive) < 2:
        return
    (crowd, count), *_ = Counter(rank.stack for rank in stuck).most_common(1)
    others = [rank for rank in alive if rank.stack != crowd]
    if 2 * count > len(alive):
        for rank in others:
            where = " > ".join(rank.stack) if rank.stack else "no stage"
            reasons[rank.label].append(
                f"in {where} while {count} of {len(alive)} ranks wait in {' > '.join(crowd)}"
            )
    elif others:
        longest = max(stuck, key=lambda rank: rank.open_s or 0.0)
        reasons[longest.label].append(
            f"in {longest.stack[-1] or '(name unknown)'} for "
            f"{describe_seconds(longest.open_s or 0.0)}, longer than any other rank"
        )


def describe_seconds(seconds: float) -> str:
    """A duration for people.

    >>> [describe_seconds(seconds) for seconds in (1e-6, 0.0123, 3.21, 75, 7e4)]
    ['1.0 µs', '12.3 ms', '3.2 s', '1 min 15 s', '19 h 26 min']
    """
    if seconds < 0.001:
        return f"{seconds * 1e6:.1f} µs"
    if seconds < 1:
        return f"{seconds * 1000:.1f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s"
    if seconds < 3600:
        return f"{seconds // 60:.0f} min {seconds % 60:.0f} s"
    return f"{seconds // 3600:.0f} h {seconds % 3600 // 60:.0f} min"
