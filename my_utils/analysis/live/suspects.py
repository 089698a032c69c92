"""Which ranks hold a run up, and which only wait for them.

Most ranks of a run that hangs wait in the same stage for a few that do something else. The suspects
are the ranks that are gone, that are behind, or that work while others wait. A rank in a stage in
which ranks wait for one another is no suspect as long as another rank is outside of it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from ...core.run_files.state import Rank
from .meetings import in_meeting, meeting_of
from .order import is_behind

PLACES_COMPARED = 64  # of ranks that stand still
MUCH_LONGER = 2.0  # times what the next rank has stood still

_Reasons = dict[str, list[tuple[str, str]]]  # of each label: kind and text


@dataclass(frozen=True)
class Suspect:
    """A rank that stands out, with the reasons, the weightiest first, and a word for each of them:
    "dead", "silent", "ended", "behind", "elsewhere", "longest" or "slow"."""

    rank: Rank
    kinds: tuple[str, ...]
    reasons: tuple[str, ...]


def missing_ranks(ranks: Sequence[Rank]) -> list[int]:
    """The ranks that the run should have, by its world size, and that left no file."""
    size = max((rank.world_size for rank in ranks if not rank.left_before), default=0)
    seen = {rank.rank for rank in ranks}
    return [number for number in range(size) if number not in seen]


@dataclass(frozen=True)
class Waiting:
    """A rank that waits for a suspect, and the stage in which it does so."""

    rank: Rank
    suspect: Rank
    stage: str

    @property
    def text(self) -> str:
        """For people."""
        return f"waits for rank {self.suspect.name} in {self.stage}"


@dataclass(frozen=True)
class Usual:
    """What is known of the run besides this poll. meetings: names of stages in which ranks wait for
    one another. steps_a_second: of the fastest rank, 0.0 where it is not known."""

    meetings: Collection[str] = ()
    steps_a_second: float = 0.0


def find_suspects(
    ranks: Sequence[Rank], stuck_after_s: float, usual: Usual | None = None
) -> list[Suspect]:
    """The ranks that stand out, the most suspicious first. Workers are left out: they come and go
    as their ranks do."""
    known = usual or Usual()
    main = [rank for rank in ranks if rank.worker == 0]
    alive = [rank for rank in main if rank.alive]
    reasons: _Reasons = {rank.label: [] for rank in main}
    _find_gone(main, reasons)
    _find_ended(main, reasons, stuck_after_s)
    _find_behind(alive, reasons, stuck_after_s, known)
    _find_holding(alive, reasons, stuck_after_s, known)
    found = []
    for rank in main:
        kinds, texts = zip(*reasons[rank.label], strict=True) if reasons[rank.label] else ((), ())
        if kinds:
            found.append(Suspect(rank, kinds, texts))
    found.sort(key=lambda suspect: _weight(suspect.rank))
    return found


def find_waiting(
    ranks: Sequence[Rank], suspects: Sequence[Suspect], stuck_after_s: float, usual: Usual
) -> list[Waiting]:
    """The ranks that wait for the first of the suspects: those in a stage in which ranks wait for
    one another, and those that have stood still for long."""
    if not suspects:
        return []
    held = {suspect.rank.label for suspect in suspects}
    return [
        Waiting(rank, suspects[0].rank, where(rank))
        for rank in ranks
        if rank.worker == 0
        and rank.alive
        and rank.label not in held
        and (in_meeting(rank, usual.meetings) or (rank.still_s or 0.0) >= stuck_after_s)
    ]


def _weight(rank: Rank) -> tuple[int, int, float]:
    order = {"dead": 0, "silent": 1}
    step = rank.step
    return order.get(rank.state, 2), -1 if step is None else step, -(rank.still_s or 0.0)


def _find_gone(ranks: Sequence[Rank], reasons: _Reasons) -> None:
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


def _find_ended(ranks: Sequence[Rank], reasons: _Reasons, stuck_after_s: float) -> None:
    """A few ranks that have ended while most still wait: they had fewer steps than the others."""
    ended = [rank for rank in ranks if rank.state == "closed"]
    stuck = [rank for rank in ranks if rank.alive and (rank.still_s or 0.0) >= stuck_after_s]
    if len(ended) < len(stuck):
        for rank in ended:
            text = f"it ended in good order while {len(stuck)} of {len(ranks)} ranks wait"
            reasons[rank.label].append(("ended", text))


def _find_behind(
    alive: Sequence[Rank], reasons: _Reasons, stuck_after_s: float, usual: Usual
) -> None:
    """A rank may be one step behind in a healthy run too, but not for long; and a rank of which the
    news is older may have gone on since. One that waits while another works is not late itself."""
    known = [rank for rank in alive if rank.step is not None]
    furthest = max(known, key=lambda rank: (rank.step, news_ns(rank)), default=None)
    if furthest is None or furthest.step is None:
        return
    all_meet = all(in_meeting(rank, usual.meetings) for rank in alive)
    for rank in known:
        assert rank.step is not None
        since_s = max(0, news_ns(furthest) - news_ns(rank)) / 1e9
        behind = furthest.step - rank.step - usual.steps_a_second * since_s
        waits = in_meeting(rank, usual.meetings) and not all_meet
        stuck = (rank.still_s or 0.0) >= stuck_after_s and not waits
        if behind > 1 or (behind == 1 and stuck):
            count = furthest.step - rank.step
            text = "1 step" if count == 1 else f"{count} steps"
            text += f" behind the furthest rank, which is at {furthest.step}"
            reasons[rank.label].append(("behind", text))


def news_ns(rank: Rank) -> float:
    """The moment at which the rank was in its step for certain: a heartbeat is as old as its file
    is. Unix time."""
    age_s = rank.beat_age_s or 0.0 if rank.source == "heartbeat" else 0.0
    return rank.seen_ns - (rank.time_offset_s + age_s) * 1e9


def _find_holding(
    alive: Sequence[Rank], reasons: _Reasons, stuck_after_s: float, usual: Usual
) -> None:
    """Where ranks have stood still for long, those that hold them up."""
    stuck = [rank for rank in alive if (rank.still_s or 0.0) >= stuck_after_s]
    if not stuck or len(alive) < 2:
        return
    waiting = [rank for rank in stuck if in_meeting(rank, usual.meetings)]
    working = [rank for rank in alive if not in_meeting(rank, usual.meetings)]
    if waiting and working:
        _find_working(waiting, working, len(alive), reasons, usual)
    elif not _find_earlier(stuck, reasons) and not waiting:
        _find_elsewhere(alive, stuck, reasons)


def _find_working(
    waiting: Sequence[Rank],
    working: Sequence[Rank],
    of: int,
    reasons: _Reasons,
    usual: Usual,
) -> None:
    """Ranks that work while others wait for them, unless they are further than these."""
    meetings = Counter(meeting_of(rank, usual.meetings) for rank in waiting)
    (stage, count), *_ = meetings.most_common(1)
    first = max(waiting, key=lambda rank: (rank.step or 0, rank.still_s or 0.0))
    for rank in working:
        if (rank.step or 0) > (first.step or 0) + 1 or is_behind(first, rank):
            continue
        (stack, _), *_ = Counter(r.stack for r in waiting if stage in r.stack).most_common(1)
        text = f"in {where(rank)} while {count} of {of} ranks wait in {stack_text(stack)}"
        reasons[rank.label].append(("elsewhere", text))


def _find_earlier(stuck: Sequence[Rank], reasons: _Reasons) -> bool:
    """Of ranks that stand still, those in a stage that others have ended, if nobody is behind them.
    Says whether the order of the ranks is known at all."""
    places: dict[object, list[Rank]] = {}
    for rank in stuck:
        places.setdefault((rank.step, rank.stack), []).append(rank)
    groups = list(places.values())[:PLACES_COMPARED]
    behind = {
        (a, b)
        for a, here in enumerate(groups)
        for b, there in enumerate(groups)
        if a != b and is_behind(here[0], there[0])
    }
    has_later = {a for a, _ in behind}
    has_earlier = {b for _, b in behind}
    for number in has_later - has_earlier:
        passed = sum(len(groups[b]) for a, b in behind if a == number)
        for rank in groups[number]:
            text = f"in {where(rank)} of step {rank.step}, which {_ranks_have(passed)} passed"
            reasons[rank.label].append(("behind", text))
    return bool(behind)


def _ranks_have(count: int) -> str:
    return "1 rank has" if count == 1 else f"{count} ranks have"


def _find_elsewhere(alive: Sequence[Rank], stuck: Sequence[Rank], reasons: _Reasons) -> None:
    """Where nothing says who waits: most ranks wait in one place, and others hold them up. Without
    a majority a rank is named only if it alone stands still, for much longer than any other one."""
    (crowd, count), *_ = Counter(rank.stack for rank in stuck).most_common(1)
    others = [rank for rank in alive if rank.stack != crowd]
    if 2 * count > len(alive):
        for rank in others:
            text = (
                f"in {where(rank)} while {count} of {len(alive)} ranks wait in {stack_text(crowd)}"
            )
            reasons[rank.label].append(("elsewhere", text))
        return
    longest, *rest = sorted(alive, key=lambda rank: -(rank.still_s or 0.0))
    is_alone = len(stuck) == 1 and longest is stuck[0]
    if is_alone and (longest.still_s or 0.0) > MUCH_LONGER * (rest[0].still_s or 0.0):
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
