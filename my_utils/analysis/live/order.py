"""Which of two ranks is further in the program that both run.

A rank is behind another one if that one has ended, in the same step, a stage that the rank is still
in. This is known from the stages that journals keep; a heartbeat has none of them.
"""

from __future__ import annotations

from ...core.run_files.state import Rank, Thread

KEPT = 16  # finished stages that a journal shows of a thread


def is_behind(rank: Rank, other: Rank) -> bool:
    """Whether `other` is certainly further than `rank`. False where nothing is known."""
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
