"""Parts a series of times into levels, several at once.

The levels are those with the least squared error plus a price for each change (optimal
partitioning: Jackson et al., 2005, An algorithm for optimal partitioning of data on an interval,
IEEE Signal Processing Letters 12). Unlike a test for one change after the other it also finds a
short part in the middle, after which the series is as it was. The price grows with the scatter
between neighbours. Changes that are smaller than asked for, or no larger than those that slow noise
makes, are dropped afterwards.
"""

from __future__ import annotations

import itertools

import numpy as np
import numpy.typing as npt

from ..verdict.quantiles import MAD_TO_SIGMA

Series = npt.NDArray[np.float64]

WINDOWS_MAX = 1000  # the error is quadratic in them
WINDOW_MIN = 5  # steps: the median of so many leaves single long steps out
PART_MIN = 4  # windows
PRICE = 10.0  # of a change, in variances of a window, times the logarithm of their number
SURE = 6.0  # standard errors of a change, of what slow noise makes of them
NEIGHBOURS = 9  # windows, whose median tells a single long one


def window_width(steps: int) -> int:
    """How many steps a window has."""
    return max(WINDOW_MIN, -(-steps // WINDOWS_MAX))


def window_medians(values: Series, width: int) -> Series:
    """The median of each window along the last axis; steps at the end that fill none are left
    out."""
    count = values.shape[-1] // width
    whole = values[..., : count * width].reshape(*values.shape[:-1], count, width)
    found: Series = np.median(whole, axis=-1)
    return found


def find_edges(windows: Series, least: float, series: int = 1) -> list[int]:
    """The windows with which another level begins.

    least: changes of the level by less do not count. series: how many are looked at beside it, so
    that all of them together have few false ones.

    >>> find_edges(np.r_[np.full(30, 5.0), np.full(10, 9.0), np.full(30, 5.0)], 1.0)
    [30, 40]
    """
    if len(windows) < 2 * PART_MIN:
        return []
    calm = _without_outliers(windows)
    sigma = _scatter(calm)
    price = PRICE * sigma**2 * (np.log(len(calm)) + np.log(series))
    edges = _partition(calm, max(float(price), PART_MIN / 2 * least**2))
    return _that_count(calm, edges, least)


def _without_outliers(windows: Series) -> Series:
    padded = np.pad(windows, NEIGHBOURS // 2, mode="edge")
    around = np.median(np.lib.stride_tricks.sliding_window_view(padded, NEIGHBOURS), axis=1)
    off = np.abs(windows - around)
    limit = 5 * MAD_TO_SIGMA * float(np.median(off))
    return np.where(off > limit, around, windows)


def _scatter(windows: Series) -> float:
    """Of one window, from the differences between neighbours, which changes leave alone."""
    return MAD_TO_SIGMA * float(np.median(np.abs(np.diff(windows)))) / float(np.sqrt(2))


def _partition(values: Series, price: float) -> list[int]:
    """Where the parts with the least error and price begin, but for the first."""
    count = len(values)
    centred = values - values.mean()
    sums = np.concatenate([[0.0], np.cumsum(centred)])
    squares = np.concatenate([[0.0], np.cumsum(centred**2)])
    best = np.full(count + 1, np.inf)
    best[0] = -price
    begins = np.zeros(count + 1, np.int64)
    for end in range(PART_MIN, count + 1):
        at = np.arange(end - PART_MIN + 1)
        error = squares[end] - squares[at] - (sums[end] - sums[at]) ** 2 / (end - at)
        costs = best[at] + error + price
        begins[end] = int(costs.argmin())
        best[end] = costs[begins[end]]
    found = []
    end = count
    while begins[end] > 0:
        end = int(begins[end])
        found.append(end)
    return found[::-1]


def _that_count(values: Series, edges: list[int], least: float) -> list[int]:
    """Without the least certain change, again and again, while one of them does not count."""
    edges = list(edges)
    while edges:
        bounds = [0, *edges, len(values)]
        parts = [values[first:last] for first, last in itertools.pairwise(bounds)]
        levels = np.array([np.median(part) for part in parts])
        slow = _slow_noise(np.concatenate([part - np.median(part) for part in parts]))
        lengths = np.array([len(part) for part in parts])
        errors = np.sqrt(slow * (1 / lengths[:-1] + 1 / lengths[1:]))
        sizes = np.abs(np.diff(levels)) / np.maximum(least, SURE * errors)
        if sizes.min() >= 1:
            break
        del edges[int(sizes.argmin())]
    return edges


def fit_line(windows: Series, least: float) -> tuple[float, float] | None:
    """Both ends of the line through a series, where it surely rises, or falls, by that much.

    >>> first, last = fit_line(np.linspace(5.0, 9.0, 50), 1.0)
    >>> round(first, 1), round(last, 1)
    (5.0, 9.1)
    """
    if len(windows) < 2 * PART_MIN:
        return None
    calm = _without_outliers(windows)
    places = np.arange(len(calm))
    slope, first = np.polyfit(places, calm, 1)
    rise = slope * len(calm)
    error = np.sqrt(12 * _slow_noise(calm - first - slope * places) / len(calm))
    if abs(rise) < max(least, SURE * error):
        return None
    return float(first), float(first + rise)


def _slow_noise(rest: Series) -> float:
    """The variance of a mean of the rest, times how many values it has: more than that of one value
    where neighbours go together."""
    size = max(int(np.sqrt(len(rest))), 2)
    blocks = rest[: len(rest) // size * size].reshape(-1, size).mean(1)
    return float(max(np.mean(blocks**2) * size, np.mean(rest**2)))


def place_of_change(values: Series, about: int, reach: int) -> int:
    """The step at which a change happens, from its window: where two levels leave least.

    >>> place_of_change(np.repeat([5.0, 9.0], [23, 27]), 25, 5)
    23
    """
    first, last = max(about - 4 * reach, 0), min(about + 4 * reach, len(values))
    before, after = values[first : max(about - reach, first + 1)], values[about + reach : last]
    if not len(after):
        return about
    one, two = (np.abs(values[first:last] - np.median(side)) for side in (before, after))
    cost = np.concatenate([[0.0], np.cumsum(one)]) + np.concatenate(
        [np.cumsum(two[::-1])[::-1], [0.0]]
    )
    low = max(about - reach, first) - first
    high = min(about + reach, last) - first
    return first + low + int(np.argmin(cost[low : high + 1]))
