"""The length of the bootstrap's blocks: long enough for steps that depend on each other.

Politis & White, Automatic block-length selection for the dependent bootstrap (2004), with the
correction of Patton, Politis & White (2009), for the circular bootstrap. It looks for the lag from
which on autocorrelations are those of chance, and weighs those before it.
"""

from __future__ import annotations

import math

import numpy as np

from ..verdict.run_data import Matrix

BLOCKS_MAX = 1000  # a longer run has longer blocks: what drifts slowly stays together
BLOCKS_MIN = 10
LAGS_MAX = 1000


def block_of(figures: Matrix) -> int:
    """The longest of the best blocks of all figures. figures: steps × figures.

    Never shorter than the third root of the steps, and such that there are 10 to 1,000 blocks.

    >>> block_of(np.random.default_rng(0).normal(100, 1, (500, 2)))
    8
    """
    count = len(figures)
    longest = max(optimal_block(calm(series)) for series in figures.T)
    least = max(math.cbrt(count), count / BLOCKS_MAX)
    return max(1, min(math.ceil(max(longest, least)), count // BLOCKS_MIN))


def calm(series: Matrix) -> Matrix:
    """The lowest and the highest tenth at the value where they begin: a spike is no dependence."""
    low, high = np.quantile(series, (0.1, 0.9))
    return np.clip(series, low, high)


def optimal_block(series: Matrix) -> float:
    """The best length for the mean of a series; 1 for one that does not vary.

    >>> noise = np.random.default_rng(1).normal(size=2000)
    >>> optimal_block(noise) < 5 < optimal_block(np.convolve(noise, np.ones(8), "valid"))
    True
    """
    count = len(series)
    apart = series - series.mean()
    variance = float(apart @ apart) / count
    if count < 9 or variance <= 0:
        return 1.0
    run = max(5, math.ceil(math.sqrt(math.log10(count))))
    lags_max = min(math.ceil(math.sqrt(count)) + run, LAGS_MAX, count - 1)
    chance = 2 * math.sqrt(math.log10(count) / count)
    covariances = [variance]
    quiet = 0  # lags in a row that are those of chance
    wanted = lags_max
    for lag in range(1, lags_max + 1):
        covariances.append(float(apart[lag:] @ apart[:-lag]) / count)
        quiet = quiet + 1 if abs(covariances[lag]) < chance * variance else 0
        if quiet == run and wanted == lags_max:
            wanted = min(2 * max(lag - run, 1), lags_max)
        if lag >= wanted:
            break
    lags = np.arange(1, wanted + 1)
    weights = np.minimum(1.0, 2 * (1 - lags / wanted)) * np.array(covariances[1 : wanted + 1])
    spectrum = variance + 2 * float(weights.sum())
    slope = 2 * float((lags * weights).sum())
    if spectrum == 0:
        return 1.0
    best = math.cbrt(1.5 * (slope / spectrum) ** 2 * count)
    return min(max(best, 1.0), 3 * math.sqrt(count), count / 3)
