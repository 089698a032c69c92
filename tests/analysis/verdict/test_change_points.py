"""Change points: the same as by recursion where that ends, and an end where it did not."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import pytest

from my_utils.analysis.verdict.change_points import SEGMENT_MIN, change_points

pytestmark = pytest.mark.no_torch

Series = npt.NDArray[np.float64]


def by_recursion(values: Series, first: int, last: int, chance: float) -> list[int]:
    """Pettitt's test by its definition, applied to both sides."""
    count = last - first
    if count < 2 * SEGMENT_MIN:
        return []
    part = values[first:last]
    places = part.argsort(kind="stable").argsort(kind="stable") + 1
    best, at = -1, 0
    for length in range(SEGMENT_MIN, count - SEGMENT_MIN + 1):
        statistic = abs(2 * int(places[:length].sum()) - length * (count + 1))
        if statistic > best:
            best, at = statistic, length
    if 2 * math.exp(-6 * best**2 / (count**3 + count**2)) > chance:
        return []
    middles = np.median(part[:at]), np.median(part[at:])
    cost = [
        np.abs(part[:n] - middles[0]).sum() + np.abs(part[n:] - middles[1]).sum()
        for n in range(SEGMENT_MIN, count - SEGMENT_MIN + 1)
    ]
    place = first + SEGMENT_MIN + int(np.argmin(np.round(cost, 9)))
    left = by_recursion(values, first, place, chance)
    return [*left, place, *by_recursion(values, place, last, chance)]


@pytest.mark.parametrize("seed", range(30))
def test_they_are_those_of_the_recursion(seed: int) -> None:
    random = np.random.default_rng(seed)
    levels = random.integers(1, 6, random.integers(1, 7)) * 10.0
    lengths = random.integers(3, 80, len(levels))
    values = np.repeat(levels, lengths) + random.standard_normal(lengths.sum())
    found = change_points(values, 0.001)
    assert [change.at for change in found] == by_recursion(values, 0, len(values), 0.001)
    for change in found:
        assert change.before != change.after


@pytest.mark.parametrize("length", [0, 1, 15, 16, 17])
def test_short_series(length: int) -> None:
    assert change_points(np.arange(length, dtype=float), 0.001) == []


@pytest.mark.parametrize("series", [
    np.tile(np.repeat([1.0, 2.0], 8), 150_000 // 16),
    np.tile(np.arange(50.0), 3_000),
    np.arange(150_000.0),
    np.full(150_000, 3.0),
    np.tile([1.0, 5.0], 75_000),
], ids=["periodic", "sawtooth", "ramp", "level", "alternating"])  # fmt: skip
def test_long_series_of_any_shape_end(series: Series) -> None:
    """150,000 exactly periodic steps ended in a RecursionError."""
    found = change_points(series, 0.001)
    assert all(SEGMENT_MIN <= change.at <= len(series) - SEGMENT_MIN for change in found)
    assert [change.at for change in found] == sorted({change.at for change in found})


def test_a_level_has_no_change() -> None:
    assert change_points(np.full(200, 3.0), 0.001) == []
    (change,) = change_points(np.repeat([3.0, 4.0], 100), 0.001)
    assert (change.at, change.before, change.after) == (100, 3.0, 4.0)


def test_a_change_in_a_long_series_is_found_at_its_place() -> None:
    values = np.repeat([10.0, 12.0], [100_000, 50_000])
    values += np.random.default_rng(0).standard_normal(len(values)) * 0.5
    (change,) = change_points(values, 0.001)
    assert abs(change.at - 100_000) < 50
