"""How often a run is polled."""

from __future__ import annotations

__all__ = ["paced"]

TIMES_ITS_COST = 25.0  # between two polls: so they take 4 % of a core


def paced(interval_s: float, cost_s: float) -> float:
    """Seconds until the next poll after one that took so much processor time.

    >>> paced(1.0, 0.01), paced(1.0, 0.1)
    (1.0, 2.5)
    """
    return max(interval_s, TIMES_ITS_COST * cost_s)
