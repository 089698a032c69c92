"""Decides how many steps at the beginning to leave out: compilation, caches, allocators.

A step is long if it is 20 % and five times the spread above the median of the second half of the
run. The warm-up ends at the first step that is not long, with about as few long ones among the next
eight as in the second half of the run. The first step never counts: it has what happens once.

Steps that vary look like a warm-up now and then. So one that takes more than a quarter of the run
must take half as long again as the rest, in the median; else only the first step is left out.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from .quantiles import median, spread_of
from .run_data import Matrix

LONGER = 0.2
SCATTERS = 5.0
AHEAD = 8
LONG_AHEAD_MAX = 2
SHARE_UNASKED = 0.25  # of the run; a warm-up that is longer must also be MUCH_LONGER
MUCH_LONGER = 0.5
WARMUP_SHARE_MAX = 0.5  # of the run; a warm-up that is longer leaves nothing to compare with


def find_warmup(step_ns: Matrix) -> int:
    """step_ns: ranks × steps. The number of columns to leave out; all of them where the run never
    left the warm-up.

    >>> find_warmup(np.array([[900.0, 300.0, *[100.0, 101.0] * 20]]))
    2
    """
    series: npt.NDArray[np.float64] = median(step_ns, 0)
    count = len(series)
    if count < 2 * AHEAD:
        return min(1, count)
    later = series[count // 2 :]
    middle = float(median(later))
    limit = middle + max(LONGER * middle, SCATTERS * float(spread_of(later[None, :], 1)[0]))
    is_long = ~(series <= limit)
    ahead = np.convolve(is_long, np.ones(AHEAD), "full")[AHEAD - 1 :][:count]
    usual = AHEAD * float(is_long[count // 2 :].mean())
    calm = np.flatnonzero(~is_long & (ahead <= LONG_AHEAD_MAX + 1.5 * usual))
    calm = calm[calm >= 1]
    first = int(calm[0]) if len(calm) else count
    if first > SHARE_UNASKED * count and median(series[:first]) < (1 + MUCH_LONGER) * middle:
        return 1
    return first if first <= WARMUP_SHARE_MAX * count else count
