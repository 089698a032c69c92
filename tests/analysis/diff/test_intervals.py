"""The intervals: against values from tables and scipy, against planted series, and in bounds."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, strategies as st

from my_utils.analysis.diff.comparison import carriers, compare
from my_utils.analysis.diff.intervals import (
    BLOCKS_MAX,
    BLOCKS_MIN,
    Samples,
    drawn_means,
    longest_block,
    of_ratio,
    optimal_block,
    sample,
)

from .series import run, series

pytestmark = pytest.mark.no_torch


def without_spikes(
    random: np.random.Generator, steps: int, memory: float
) -> npt.NDArray[np.float64]:
    values = series(random, steps, 0.03, memory)
    capped: npt.NDArray[np.float64] = np.minimum(values, np.quantile(values, 0.97, axis=0))
    return capped


def drawn_by_hand(
    figures: npt.NDArray[np.float64], block: int, begins: list[int]
) -> npt.NDArray[np.float64]:
    steps = [(begin + at) % len(figures) for begin in begins for at in range(block)]
    mean: npt.NDArray[np.float64] = figures[steps[: len(figures)]].mean(0)
    return mean


@pytest.mark.parametrize(("steps", "block"), [(1, 1), (23, 1), (200, 7), (200, 200), (501, 40)])
def test_draws_are_those_written_out(steps: int, block: int) -> None:
    """A draw of blocks is one of those that can be: its mean is that of some begins."""
    figures = np.random.default_rng(steps).lognormal(size=(steps, 3))
    whole, rest = divmod(steps, block)
    random = np.random.default_rng(7)
    last = random.integers(steps, size=5)
    begins = random.integers(steps, size=(5, whole))
    for at, drawn in enumerate(drawn_means(figures, block, 5, seed=7)):
        ends = [last[at]] if rest else []
        wanted = drawn_by_hand(figures, block, [*begins[at].tolist(), *ends])
        np.testing.assert_allclose(drawn, wanted, rtol=1e-9)


def test_the_error_of_several_runs_is_that_of_their_means() -> None:
    scipy_stats = pytest.importorskip("scipy.stats", reason="scipy is not installed")
    random = np.random.default_rng(3)
    runs = [random.lognormal(size=(50, 2)) for _ in range(5)]
    found = sample(runs, by_steps=False)
    means = [one.mean(0) for one in runs]
    np.testing.assert_allclose(found.errors, scipy_stats.sem(means))
    wanted = scipy_stats.ttest_1samp(means, 1.0)
    np.testing.assert_allclose((found.means - 1.0) / found.errors, wanted.statistic)
    assert [found.freedom] * 2 == wanted.df.tolist()


def test_whole_blocks_do_not_vary() -> None:
    figures = np.random.default_rng(0).lognormal(size=(300, 2))
    np.testing.assert_allclose(drawn_means(figures, 300, 50).std(0), 0, atol=1e-9)


def test_blocks_keep_what_depends() -> None:
    """By the root of (1 + r) / (1 - r), which is 3 at 0.8."""
    calm = without_spikes(np.random.default_rng(5), 20_000, 0.8)[:, :1]
    alone, blocks = (drawn_means(calm, block, 1000).std() for block in (1, 200))
    assert 2.2 < blocks / alone < 3.5


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
    block = longest_block(walk)
    assert 1 <= block <= max(1, steps // BLOCKS_MIN)
    assert math.ceil(steps / block) <= BLOCKS_MAX


def test_the_error_grows_with_the_memory() -> None:
    """As that of a mean does: by the root of (1 + r) / (1 - r), which is 1.7 at 0.5."""
    random = np.random.default_rng(1)
    errors = [
        np.mean([
            sample([without_spikes(random, 500, memory)], by_steps=True).errors[0]
            for _ in range(20)
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


def test_an_error_beyond_all_floats_has_an_infinite_bound() -> None:
    side = Samples(np.array([1.0]), np.array([1e4]), 50.0)
    found = of_ratio(side, side, 0)
    assert (found.share, found.low, found.high) == (0.0, -1.0, math.inf)
