"""The figures of one stage in a report, in milliseconds."""

from __future__ import annotations

from typing import TypedDict

from ... import _core


class Figures(TypedDict):
    """Figures of one stage in milliseconds; the spread is that of the population."""

    count: int
    total_ms: float
    mean_ms: float
    std_ms: float
    min_ms: float
    p50_ms: float
    p90_ms: float
    p99_ms: float
    max_ms: float


FIGURE_NAMES = tuple(Figures.__annotations__)


def figures_of(numbers: _core._FigureNumbers) -> Figures:
    """Of what the C aggregates and Durations give, in ns.

    >>> durations = _core.Durations()
    >>> for ns in (1_000_000, 3_000_000):
    ...     durations.add(ns)
    >>> figures = figures_of(durations.figures())
    >>> figures["count"], figures["mean_ms"], figures["std_ms"], figures["p50_ms"]
    (2, 2.0, 1.0, 1.0)
    """
    count, total, least, most, std, p50, p90, p99 = numbers
    return {
        "count": count,
        "total_ms": total / 1e6,
        "mean_ms": total / count / 1e6 if count else 0.0,
        "std_ms": std / 1e6,
        "min_ms": least / 1e6,
        "p50_ms": p50 / 1e6,
        "p90_ms": p90 / 1e6,
        "p99_ms": p99 / 1e6,
        "max_ms": most / 1e6,
    }
