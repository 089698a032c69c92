"""Medians, quantiles and scatters of arrays in which values may be missing (NaN)."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np

MAD_TO_SIGMA = 1.4826


def median(values: Any, axis: int | None = None) -> Any:
    """The median along an axis without NaNs; NaN where nothing is left."""
    return quantile_of(values, 0.5, axis)


def quantile_of(values: Any, share: float, axis: int | None = None) -> Any:
    """The same for any quantile, between two values as numpy's default has it."""
    if np.size(values) and not np.isnan(values).any():
        return _quantile(values, share, axis)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # of slices that hold only NaNs
        return np.nanquantile(values, share, axis=axis)


def _quantile(values: Any, share: float, axis: int | None) -> Any:
    """By sorting, which numpy does several times faster than its own quantiles; of all values
    together, and along the first axis, by partitioning, which takes a half of that or less."""
    along = 0 if axis is None else axis
    last = (np.size(values) if axis is None else values.shape[axis]) - 1
    place = share * last
    below, above = int(place), min(int(place) + 1, last)
    if axis == 0 and above > below:
        ordered = np.partition(values, above, axis=0)
        lower, upper = ordered[:above].max(0), ordered[above]
        return lower + (upper - lower) * (place - int(place))
    if axis is None:
        ordered = np.partition(values, (below, above), axis=None)
    else:
        ordered = np.sort(values, axis=axis)
    lower = ordered.take(below, axis=along)
    upper = ordered.take(above, axis=along)
    return lower + (upper - lower) * (place - int(place))


def spread_of(values: Any, axis: int) -> Any:
    """The standard deviation along an axis, estimated from the median absolute deviation."""
    return MAD_TO_SIGMA * median(np.abs(values - np.expand_dims(median(values, axis), axis)), axis)
