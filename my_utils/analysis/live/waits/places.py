"""Where a rank is by its open stages and recorded collectives, and which of two is further."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from ....core.run_files.state import COLLECTIVES_TAG, Rank, Thread
from ...verdict.kinds import kind_of_stage

PATIENCE = 20.0  # times the time for which a rank may be without progress
KEPT = 16  # finished stages that a journal shows of a thread
CALLS_EXAMINED = 4  # of those, the newest
WAIT = "wait "
_PEER_CALLS = ("send", "recv")


@dataclass(frozen=True)
class Usual:
    """What is known of the run besides this poll. meetings: names of stages in which ranks wait for
    one another. steps_a_second: of the fastest rank, 0.0 where it is not known. members: of the
    group of a rank's call, by its label, or of its stage; None where they are not known. error: of
    a rank that has ended, the name of its exception."""

    meetings: Collection[str] = ()
    steps_a_second: float = 0.0
    members: Callable[[Rank, str], frozenset[int] | None] = lambda rank, name: None
    error: Callable[[Rank], str] = lambda rank: ""


@dataclass(frozen=True)
class Meeting:
    """Where a rank waits for others. name: of the stage or the call. members: the ranks of its
    group; None where they are not known."""

    name: str
    members: frozenset[int] | None = None

    @property
    def is_pair(self) -> bool:
        """Whether it is a send or receive."""
        return self.name.partition(" ")[0] in _PEER_CALLS

    def answers(self, other: Meeting) -> bool:
        """Whether it is the receive of that send, or the send of that receive."""
        ways = {one.name.partition(" ")[0] for one in (self, other)}
        return ways == {*_PEER_CALLS} and self.members == other.members


def find_meeting(rank: Rank, usual: Usual) -> Meeting | None:
    """Where the main thread waits for other ranks, or may; None where it does not."""
    if rank.call is not None:
        name = rank.call.name.removeprefix(WAIT)
        kind, _, label = name.partition(" ")
        if kind in _PEER_CALLS and label.isdecimal():
            return Meeting(name, frozenset([rank.rank, int(label)]))
        return Meeting(name, usual.members(rank, label))
    for stage in rank.stack:
        if stage in usual.meetings or kind_of_stage(stage) == "communication":
            return Meeting(stage, usual.members(rank, stage))
    return None


def is_odd(rank: Rank) -> bool:
    """Whether the main thread is in a call, and that or one of the few before it has never followed
    the calls before it, where another has: the rank has left out, added or swapped a call."""
    thread = next((t for t in rank.main_threads if t.tag == COLLECTIVES_TAG and t.open), None)
    if thread is None:
        return False
    names = [*(finished.name for finished in reversed(thread.last)), thread.open[0].name]
    calls = [name for name in names if not name.startswith(WAIT)]
    newest = len(calls) - 1
    for at in range(newest, max(newest - CALLS_EXAMINED, 1), -1):
        followed = _followers(calls, at, 2) or (_followers(calls, at, 1) if at == newest else set())
        if followed and calls[at] not in followed:
            return True
    return False


def _followers(calls: Sequence[str], at: int, length: int) -> set[str]:
    """What has followed, elsewhere, so many calls as are before that one."""
    before = calls[at - length : at]
    ends = (end for end in range(length, len(calls)) if end != at)
    return {calls[end] for end in ends if calls[end - length : end] == before}


def takes_long(rank: Rank, after_s: float) -> bool:
    """Whether the rank lives and is in a checkpoint, in an evaluation, or in the forward of its
    first step, which may compile: that may take 20 times as long, and others may wait for it."""
    if rank.state != "running" or rank.main is None or rank.call is not None:
        return False
    if (rank.still_s or 0.0) >= PATIENCE * after_s:
        return False
    kinds = {kind_of_stage(stage) for stage in rank.stack}
    compiles = rank.stack[-1:] == ("forward",) and rank.step == 0
    return compiles or bool(kinds & {"checkpoint", "eval"})


def missing_ranks(ranks: Sequence[Rank]) -> list[int]:
    """The ranks that the run should have, by its world size, and that left no file."""
    size = max((rank.world_size for rank in ranks if not rank.left_before), default=0)
    seen = {rank.rank for rank in ranks}
    return [number for number in range(size) if number not in seen]


def news_ns(rank: Rank) -> float:
    """The moment at which the rank was in its step for certain: a heartbeat is as old as its file
    is. Unix time."""
    age_s = rank.beat_age_s or 0.0 if rank.source == "heartbeat" else 0.0
    return rank.seen_ns - (rank.time_offset_s + age_s) * 1e9


# --- for people ---


def where(rank: Rank) -> str:
    """The open stages of the main thread."""
    return stack_text(rank.stack)


def stack_text(stack: Sequence[str]) -> str:
    """Open stages as text.

    >>> stack_text(("iter", "")), stack_text(())
    ('iter > (name unknown)', 'no stage')
    """
    return " > ".join(part or "(name unknown)" for part in stack) or "no stage"


# --- the order of two ranks ---


def is_behind(rank: Rank, other: Rank) -> bool:
    """Whether `other` is certainly further in the step that both are in: it has ended a stage that
    the rank is still in. Journals keep the ended stages, heartbeats do not. False where nothing is
    known."""
    if rank.step is None or rank.step != other.step or not (_is_known(rank) and _is_known(other)):
        return False
    stage, other_stage = _where_they_part(rank.stack, other.stack)
    if stage is not None:
        return _ended(other, stage) > _ended(rank, stage)
    # The rank is between two stages, and has not begun the one that the other is in.
    return other_stage is not None and _ended(other, other_stage) >= _ended(rank, other_stage)


def _where_they_part(
    stack: tuple[str, ...], other: tuple[str, ...]
) -> tuple[str | None, str | None]:
    """The outermost stages of two stacks that differ; None for the one that has no more."""
    same = 0
    while same < min(len(stack), len(other)) and stack[same] == other[same]:
        same += 1
    return (
        stack[same] if same < len(stack) else None,
        other[same] if same < len(other) else None,
    )


def _is_known(rank: Rank) -> bool:
    """Whether all stages that the rank has ended in its step are there to be counted."""
    threads = _timed(rank)
    return bool(threads) and all(
        len(thread.last) < KEPT or thread.last[-1].step != rank.step for thread in threads
    )


def _ended(rank: Rank, stage: str) -> int:
    """How many stages of that name it has ended in its step."""
    return sum(
        finished.step == rank.step and finished.name == stage
        for thread in _timed(rank)
        for finished in thread.last
    )


def _timed(rank: Rank) -> list[Thread]:
    return [thread for thread in rank.main_threads if thread.last]
