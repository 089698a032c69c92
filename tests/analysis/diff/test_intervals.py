"""The intervals: against values from tables and scipy, against planted series, and in bounds."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, strategies as st

from my_utils import _core
from my_utils.analysis.diff.comparison import carriers, compare
from my_utils.analysis.diff.intervals import (
    BLOCKS_MAX,
    BLOCKS_MIN,
    Samples,
    block_of,
    of_ratio,
    optimal_block,
    sample,
)

from .series import run, series

pytestmark = pytest.mark.no_torch


def test_trimmed_means_are_those_of_scipy() -> None:
    stats = pytest.importorskip("scipy.stats")
    values = np.random.default_rng(0).lognormal(size=(333, 1))
    (mean,) = np.frombuffer(_core.trimmed_means(values, 33))
    assert mean == pytest.approx(stats.trim_mean(values[:, 0], 0.1), rel=1e-12)


def test_a_longer_memory_has_longer_blocks() -> None:
    random = np.random.default_rng(0)
    lengths = [
        np.mean([optimal_block(series(random, 2000, 0.03, memory)[:, 2]) for _ in range(5)])
        for memory in (0.0, 0.5, 0.9)
    ]
    assert lengths[0] < lengths[1] < lengths[2]


@given(st.integers(10, 5000), st.integers(0, 99))
def test_blocks_are_in_bounds(steps: int, seed: int) -> None:
    walk = np.random.default_rng(seed).normal(size=(steps, 1)).cumsum(0) + 1e3
    block = block_of(walk)
    assert 1 <= block <= max(1, steps // BLOCKS_MIN)
    assert math.ceil(steps / block) <= BLOCKS_MAX


def test_the_error_grows_with_the_memory() -> None:
    """As that of a mean does: by the root of (1 + r) / (1 - r), which is 1.7 at 0.5."""
    random = np.random.default_rng(1)
    errors = [
        np.mean([
            sample([series(random, 500, 0.03, memory)], by_steps=True).errors[0] for _ in range(20)
        ])
        for memory in (0.0, 0.5)
    ]  # fmt: skip
    assert 1.4 < errors[1] / errors[0] < 2.0


def test_the_same_runs_give_the_same_interval() -> None:
    sides = [[run(np.random.default_rng(seed))] for seed in (1, 2)]
    again = [[run(np.random.default_rng(seed))] for seed in (1, 2)]
    assert compare(sides[0], sides[1]).as_data() == compare(again[0], again[1]).as_data()


@given(st.lists(st.floats(-1e9, 1e9), min_size=2, max_size=40))
def test_ranks_that_are_named_have_more_than_the_others(apart: list[float]) -> None:
    values = np.array(apart)
    named = carriers(values)
    others = sorted(set(range(len(values))) - set(named))
    if named and others:
        toward = 1 if values.mean() >= 0 else -1
        assert (toward * values[named]).min() >= (toward * values[others]).max()


def test_wrong_arguments_of_the_bootstrap() -> None:
    values = np.ones((30, 2))
    with pytest.raises(ValueError, match="block must be 1 to 30 steps, not 31"):
        _core.block_bootstrap(values, 3, 31, 5)
    with pytest.raises(ValueError, match="trimmed must leave a step: 15 at each end of 30"):
        _core.trimmed_means(values, 15)
    with pytest.raises(TypeError, match="values must have two dimensions of float64"):
        _core.trimmed_means(values.astype("f4"), 3)
    with pytest.raises(ValueError, match="count must be"):
        _core.block_bootstrap(values, 3, 5, 0)
    values[3, 1] = np.nan
    with pytest.raises(ValueError, match="figure 1 of step 3 is not finite"):
        _core.block_bootstrap(values, 3, 5, 5)


def test_an_error_beyond_all_floats_has_an_infinite_bound() -> None:
    side = Samples(np.array([1.0]), np.array([1e4]), 50.0)
    found = of_ratio(side, side, 0)
    assert (found.share, found.low, found.high) == (0.0, -1.0, math.inf)
