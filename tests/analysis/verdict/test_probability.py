"""Tails and quantiles, against SciPy."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from my_utils.analysis.verdict.probability import poisson_tail, t_quantile, t_tail

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
