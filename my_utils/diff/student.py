"""Quantiles of Student's t, without scipy."""

from __future__ import annotations

import math

import numpy as np

__all__ = ["t_quantile"]

_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(96)
_HALVINGS = 60


def t_quantile(tail: float, freedom: float) -> float:
    """What Student's t exceeds with this probability. tail: above 0, at most 0.5. freedom: at
    least 1.

    >>> round(t_quantile(0.025, 8), 4), round(t_quantile(0.005, 1), 3)
    (2.306, 63.657)
    """
    low, high = 0.0, math.pi / 2
    for _ in range(_HALVINGS):
        angle = (low + high) / 2
        if _tail_below(angle, freedom) < tail:
            low = angle
        else:
            high = angle
    return math.sqrt(freedom) / math.tan(high)


def _tail_below(angle: float, freedom: float) -> float:
    """With t = sqrt(freedom) / tan(angle) the density is proportional to sin(angle)^(freedom-1)."""
    points = (_NODES + 1) * angle / 2
    part = float(_WEIGHTS @ np.sin(points) ** (freedom - 1)) * angle / 2
    whole = math.lgamma(freedom / 2) - math.lgamma((freedom + 1) / 2) + math.log(math.pi) / 2
    return part / math.exp(whole)
