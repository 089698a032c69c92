"""Tails and quantiles of distributions, without SciPy."""

from __future__ import annotations

import math

import numpy as np

_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(96)
_HALVINGS = 60
_FREEDOM_MAX = 1e6  # beyond, the distribution is the normal one to 1e-6, and lgamma loses digits
_NEGLIGIBLE = 100.0  # twice the exponent below which the density adds nothing


def t_quantile(tail: float, freedom: float) -> float:
    """What Student's t exceeds with this probability. tail: above 0, at most 0.5. freedom: at
    least 1.

    >>> round(t_quantile(0.025, 8), 4), round(t_quantile(0.005, 1), 3)
    (2.306, 63.657)
    """
    freedom = min(freedom, _FREEDOM_MAX)
    low, high = 0.0, math.pi / 2
    for _ in range(_HALVINGS):
        angle = (low + high) / 2
        if _tail_below(angle, freedom) < tail:
            low = angle
        else:
            high = angle
    return math.sqrt(freedom) / math.tan(high)


def t_tail(t: float, freedom: float) -> float:
    """The probability that Student's t exceeds `t`. freedom: at least 1. Its relative error is
    below 1e-9.

    >>> round(t_tail(2.306, 8), 4), round(t_tail(-2.306, 8), 4), t_tail(math.inf, 8)
    (0.025, 0.975, 0.0)
    """
    if t < 0:
        return 1.0 - t_tail(-t, freedom)
    freedom = min(freedom, _FREEDOM_MAX)
    return _tail_below(math.atan2(math.sqrt(freedom), t), freedom)


def _tail_below(angle: float, freedom: float) -> float:
    """With t = sqrt(freedom) / tan(angle) the density is proportional to sin(angle)^(freedom-1)."""
    width = min(angle, math.sqrt(_NEGLIGIBLE / max(freedom - 1, 1.0)))
    places = (_NODES + 1) / 2
    points = angle - width * (1 - places**4)  # dense where a power that is not whole begins at 0
    density = np.sin(points) ** (freedom - 1) * 4 * places**3
    part = float(_WEIGHTS @ density) * width / 2
    whole = math.lgamma(freedom / 2) - math.lgamma((freedom + 1) / 2) + math.log(math.pi) / 2
    return part / math.exp(whole)


def poisson_tail(count: int, mean: float) -> float:
    """The probability of `count` events or more where `mean` are expected. mean: above 0.

    >>> round(poisson_tail(1, 0.5), 6), round(poisson_tail(0, 0.5), 6)
    (0.393469, 1.0)
    """
    if count <= mean:  # then those below are the smaller part
        return 1.0 - math.fsum(_poisson(below, mean) for below in range(count))
    term = total = _poisson(count, mean)
    while term > total * 1e-17:
        count += 1
        term *= mean / count
        total += term
    return total


def _poisson(count: int, mean: float) -> float:
    return math.exp(count * math.log(mean) - mean - math.lgamma(count + 1))


def binomial_tail(count: int, trials: int, odds: float) -> float:
    """The probability of `count` events or more in so many trials. odds: of one, above 0 and
    below 1.

    >>> round(binomial_tail(2, 3, 0.5), 6), binomial_tail(0, 3, 0.5)
    (0.5, 1.0)
    """
    tail = math.fsum(_binomial(one, trials, odds) for one in range(count, trials + 1))
    return min(1.0, tail)


def _binomial(count: int, trials: int, odds: float) -> float:
    rest = trials - count
    ways = math.lgamma(trials + 1) - math.lgamma(count + 1) - math.lgamma(rest + 1)
    return math.exp(ways + count * math.log(odds) + rest * math.log1p(-odds))
