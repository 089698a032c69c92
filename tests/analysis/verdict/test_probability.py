"""Tails and quantiles, against SciPy."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
from hypothesis import given, strategies as st

from my_utils.analysis.verdict.probability import binomial_tail, poisson_tail, t_quantile, t_tail

special = pytest.importorskip("scipy.special", reason="scipy is not installed")

pytestmark = pytest.mark.no_torch

FREEDOMS = st.one_of(st.integers(1, 50_000), st.floats(1, 400))


@given(st.floats(1e-6, 0.5), FREEDOMS)
def test_quantiles_of_t(tail: float, freedom: float) -> None:
    assert t_quantile(tail, freedom) == pytest.approx(
        -special.stdtrit(freedom, tail), rel=1e-6, abs=1e-9
    )


@given(st.floats(-30, 30), FREEDOMS)
def test_tails_of_t(t: float, freedom: float) -> None:
    assert t_tail(t, freedom) == pytest.approx(special.stdtr(freedom, -t), rel=1e-9, abs=1e-290)


@given(st.integers(0, 3000), st.floats(1e-6, 2000))
def test_tails_of_poisson(count: int, mean: float) -> None:
    expected = special.pdtrc(count - 1, mean) if count else 1.0
    assert poisson_tail(count, mean) == pytest.approx(expected, rel=1e-9, abs=1e-290)


def exact_tail(count: int, trials: int, odds: Fraction) -> float:
    one, other = odds.numerator, odds.denominator - odds.numerator
    ways = (math.comb(trials, k) * one**k * other ** (trials - k) for k in range(count, trials + 1))
    return float(Fraction(sum(ways), odds.denominator**trials))


@given(st.integers(1, 40), st.integers(0, 40), st.integers(2, 100_000))
def test_tails_of_the_binomial(trials: int, count: int, ranks: int) -> None:
    count = min(count, trials)
    expected = exact_tail(count, trials, Fraction(1, ranks))
    assert binomial_tail(count, trials, 1 / ranks) == pytest.approx(expected, rel=1e-11)


@pytest.mark.parametrize(
    ("count", "trials", "ranks"),
    [(0, 1500, 2), (750, 1500, 2), (900, 1500, 2), (900, 1500, 8), (1600, 3000, 2)],
)
def test_tails_of_many_trials(count: int, trials: int, ranks: int) -> None:
    expected = exact_tail(count, trials, Fraction(1, ranks))
    assert binomial_tail(count, trials, 1 / ranks) == pytest.approx(expected, rel=1e-9, abs=1e-290)


def test_a_tail_that_no_float_has_is_zero() -> None:
    assert binomial_tail(60_000, 100_000, 0.25) == 0
