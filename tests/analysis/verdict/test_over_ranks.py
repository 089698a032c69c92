"""What is worked out for all ranks at once, beside the same rank by rank."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from my_utils.analysis.verdict.memory import LEAST_GROWTH, find_growth
from my_utils.analysis.verdict.work import Work, medians_of_others

pytestmark = pytest.mark.no_torch

Matrix = npt.NDArray[np.float64]


def work_that(meets: bool, own: Matrix) -> Work:
    meetings = np.zeros(1 if meets else 0, np.int64)
    waits = np.zeros((*own.shape, len(meetings)))
    return Work(
        np.arange(len(own)), ["forward"], own[..., None], meetings, ["backward"] * len(meetings),
        [0] * len(meetings), [], [True] * len(meetings), waits, waits, float(own.mean()),
    )  # fmt: skip


@pytest.mark.parametrize("seed", range(30))
def test_the_median_of_the_other_ranks(seed: int) -> None:
    """Of few values, so that many are equal."""
    random = np.random.default_rng(seed)
    values = random.integers(0, 6, (int(random.integers(2, 12)), 7, 2)).astype(float)
    of_others = medians_of_others(values)
    for row in range(len(values)):
        assert (of_others(row) == np.median(np.delete(values, row, 0), axis=0)).all()


@pytest.mark.parametrize("meets", [True, False])
@pytest.mark.parametrize("seed", range(20))
def test_what_each_rank_alone_would_save(seed: int, meets: bool) -> None:
    random = np.random.default_rng(seed)
    own = random.integers(5, 20, (int(random.integers(2, 9)), 40)).astype(float)
    less = np.where(random.random(own.shape) < 0.1, random.integers(1, 5, own.shape), 0.0)
    less[0] = 0
    work = work_that(meets, own)
    found = work.saved_alone(own, less)
    for row in range(len(own)):
        without = own.copy()
        without[row] -= less[row]
        assert found[row] == work.saved(own, without).mean()


def test_a_rank_alone_saves_what_it_takes_less() -> None:
    own = np.full((1, 40), 9.0)
    assert work_that(False, own).saved_alone(own, np.full_like(own, 2.0)).tolist() == [2.0]


def test_memory_grows_on_the_ranks_on_which_it_does() -> None:
    """Whether or not a rank left steps out."""
    steps = np.arange(100)
    steady = 1e9 + 1e6 * np.sin(steps)
    series = np.array([steady, 1e9 + 5e6 * steps, steady, 1e9 + 3e6 * steps, 1e9 + 1e6 * steps])
    series[2, ::7] = series[3, ::7] = np.nan
    growth = find_growth({"rss_bytes": series}, steps[10:])
    assert growth is not None and growth.growth >= LEAST_GROWTH
    assert growth.rows.tolist() == [1, 3, 4]
    assert growth.growth == pytest.approx(5e6 * 90 / 1.05e9, rel=0.1)
    assert growth.bytes_a_step == pytest.approx(5e6, rel=0.2)
