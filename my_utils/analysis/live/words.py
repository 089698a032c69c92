"""How stages and durations are written for people."""

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
