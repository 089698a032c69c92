"""How open stages are written for people."""

from __future__ import annotations

from collections.abc import Sequence

from ...core.run_files.state import Rank


def where(rank: Rank) -> str:
    """The open stages of the main thread, for people."""
    return stack_text(rank.stack)


def stack_text(stack: Sequence[str]) -> str:
    """Open stages, for people.

    >>> stack_text(("iter", "")), stack_text(())
    ('iter > (name unknown)', 'no stage')
    """
    return " > ".join(part or "(name unknown)" for part in stack) or "no stage"
