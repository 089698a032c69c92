"""The confidence interval of a difference: Student's t for two means.

With several runs on each side, the error of a side is what its runs differ by among each other.
Else it is what its steps differ by: the scatter of a block bootstrap.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..verdict.probability import t_quantile
from ..verdict.run_data import Matrix

FALSE_ALARMS = 0.001  # of comparisons of equal sides: for the step, and for all stages together
MISSED = 0.1  # of differences of the size that "could have been seen"
DRAWS = 2000
BLOCKS_MAX = 1000  # a longer run has longer blocks: what drifts slowly stays together
BLOCKS_MIN = 10
LAGS_MAX = 1000
GATHERED_MAX = 2**21  # figures of blocks at once, 16 MiB
FREEDOM_OF_BLOCK = 1.5  # blocks that overlap tell more of the scatter than those that do not
_LOG_MAX = math.log(sys.float_info.max)


@dataclass(frozen=True)
class Interval:
    """A relative difference of B from A with its confidence interval, as shares: 0.02 is 2 % more.
    sees: the smallest difference that would have been found nine times in ten.

    >>> Interval(0.04, 0.03, 0.05, 0.012).differs
    True
    """

    share: float
    low: float
    high: float
    sees: float

    @property
    def differs(self) -> bool:
        return self.low > 0 or self.high < 0

    @property
    def margin(self) -> float:
        """Half of the interval."""
        return (self.high - self.low) / 2


@dataclass
class Samples:
    """A side. means, errors: of each figure, and its standard error, arrays of figures. freedom:
    how much the errors are known by, as degrees of freedom."""

    means: Matrix
    errors: Matrix
    freedom: float


def sample(runs: Sequence[Matrix], *, by_steps: bool, seed: int = 0) -> Samples:
    """runs: of each run, steps × figures.

    by_steps: the errors come from the steps; else from the runs, of which there are several. The
    same seed gives the same draws.
    """
    means = np.array([figures.mean(0) for figures in runs])
    count = len(runs)
    if not by_steps:
        return Samples(means.mean(0), means.std(0, ddof=1) / math.sqrt(count), count - 1)
    squares, freedom = np.zeros(means.shape[1]), 0.0
    for number, figures in enumerate(runs):
        block = longest_block(figures)
        squares += drawn_means(figures, block, DRAWS, 1000 * seed + number).var(0)
        freedom += FREEDOM_OF_BLOCK * len(figures) / block
    return Samples(means.mean(0), np.sqrt(squares) / count, freedom)


def drawn_means(figures: Matrix, block: int, count: int, seed: int = 0) -> Matrix:
    """The means of draws, draws × figures. A draw has as many steps as there are, in blocks of so
    many that begin at any step, and go on at the first step after the last one.

    Politis & Romano, A circular block-resampling procedure for stationary data (1992). The last
    block is cut.
    """
    steps = len(figures)
    whole, rest = divmod(steps, block)
    random = np.random.default_rng(seed)
    of_block, of_rest = (_sums_from_each_step(figures, length) for length in (block, rest))
    means = of_rest[random.integers(steps, size=count)]
    at_once = max(GATHERED_MAX // (whole * figures.shape[1]), 1)
    for first in range(0, count, at_once):
        begins = random.integers(steps, size=(min(at_once, count - first), whole))
        means[first : first + at_once] += of_block[begins].sum(1)
    return means / steps


def _sums_from_each_step(figures: Matrix, length: int) -> Matrix:
    """Of so many steps from each one on, around the end; steps × figures."""
    around = np.concatenate([np.zeros((1, figures.shape[1])), figures, figures[:length]]).cumsum(0)
    sums: Matrix = around[length : length + len(figures)] - around[: len(figures)]
    return sums


# --- the length of the blocks: enough for steps that depend on each other ---


def longest_block(figures: Matrix) -> int:
    """The longest of the best blocks of all figures. figures: steps × figures.

    Never shorter than the third root of the steps, and such that there are 10 to 1,000 blocks.

    >>> longest_block(np.random.default_rng(0).normal(100, 1, (500, 2)))
    8
    """
    count = len(figures)
    longest = max(optimal_block(calm(series)) for series in figures.T)
    least = max(math.cbrt(count), count / BLOCKS_MAX)
    return max(1, min(math.ceil(max(longest, least)), count // BLOCKS_MIN))


def calm(series: Matrix) -> Matrix:
    """The lowest and the highest tenth at the value where they begin: spikes are not dependence."""
    low, high = np.quantile(series, (0.1, 0.9))
    return np.clip(series, low, high)


def optimal_block(series: Matrix) -> float:
    """The best length for the mean of a series; 1 for one that does not vary.

    Politis & White, Automatic block-length selection for the dependent bootstrap (2004), with the
    correction of Patton, Politis & White (2009), for the circular bootstrap. It looks for the lag
    from which on autocorrelations are those of chance, and weighs those before it.

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


# --- the intervals ---


def of_ratio(a: Samples, b: Samples, figure: int, false_alarms: float = FALSE_ALARMS) -> Interval:
    """Of a figure itself: how much more of it B has than A, from the logarithm of the ratio."""
    if a.means[figure] <= 0 or b.means[figure] <= 0:
        return Interval(math.nan, -math.inf, math.inf, math.inf)
    estimate = math.log(b.means[figure] / a.means[figure])
    off = [float(side.errors[figure] / side.means[figure]) for side in (a, b)]
    half, sees = _t_interval(off, [a.freedom, b.freedom], false_alarms)
    return Interval(*map(_grown, (estimate, estimate - half, estimate + half, sees)))


def _grown(logarithm: float) -> float:
    """The share that a logarithm of a ratio stands for; infinite where no float has it."""
    return math.expm1(logarithm) if logarithm < _LOG_MAX else math.inf


def of_part(a: Samples, b: Samples, figure: int, false_alarms: float) -> Interval:
    """Of a part of the step: how much more of a step of A it takes on B."""
    step = float(a.means[0])
    share = float(b.means[figure] - a.means[figure]) / step
    off = [float(side.errors[figure]) / step for side in (a, b)]
    half, sees = _t_interval(off, [a.freedom, b.freedom], false_alarms)
    return Interval(share, share - half, share + half, sees)


def _t_interval(
    off: Sequence[float], freedoms: Sequence[float], false_alarms: float
) -> tuple[float, float]:
    """Half of the interval, and what it sees. off: the standard errors of both sides. With as many
    runs on each side it is Student's, which needs few of them; else Welch's, as his would be wrong
    where the sides scatter differently."""
    squares = [error * error for error in off]
    spread = math.sqrt(sum(squares))
    if spread == 0:
        return 0.0, 0.0
    if freedoms[0] == freedoms[1]:
        freedom = sum(freedoms)
    else:
        weights = [square**2 / free for square, free in zip(squares, freedoms, strict=True)]
        freedom = sum(squares) ** 2 / sum(weights)
    half = spread * t_quantile(false_alarms / 2, freedom)
    return half, half + spread * t_quantile(MISSED, freedom)
