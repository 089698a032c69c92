"""The cells of the heat map as text in the page: a matrix of times in a megabyte, not in eight.

A cell is a whole number of 16 bits on a logarithmic scale, 0 where nothing was recorded. All high
bytes come first, then all low bytes: neighbours are alike, so that deflate finds more. The text is
base64 of a zlib stream (RFC 1950), which browsers inflate themselves.
"""

from __future__ import annotations

import base64
import zlib
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

CODES = 65_535  # of times; 0 is kept for what was not recorded
RATIO_LEAST = 1.00002  # so that equal cells do not divide by zero
LEVEL = 6  # of zlib: 9 takes four times as long for 1 %


@dataclass(frozen=True)
class CodedCells:
    """A cell with the code c > 0 took low_ms * ratio ** (c - 1). data: see the module."""

    low_ms: float
    ratio: float
    data: str

    @property
    def error(self) -> float:
        """By which fraction a decoded time is off at most."""
        return float(np.sqrt(self.ratio)) - 1.0


def code_cells(times_ms: npt.NDArray[np.float64]) -> CodedCells:
    """times_ms: rank × step. NaN is not recorded; what is below a nanosecond counts as one.

    Of times that lie within a factor of 10^12 each is kept to 0.03 %.
    """
    known = np.isfinite(times_ms)
    clipped = np.maximum(times_ms[known], 1e-6)
    low = float(clipped.min(initial=1.0)) if clipped.size else 1.0
    high = float(clipped.max(initial=low))
    ratio = max((high / low) ** (1 / (CODES - 1)), RATIO_LEAST)
    codes = np.zeros(times_ms.shape, np.uint16)
    codes[known] = np.rint(np.log(clipped / low) / np.log(ratio)).astype(np.int64) + 1
    planes = np.concatenate([codes.ravel() >> 8, codes.ravel() & 0xFF]).astype(np.uint8)
    return CodedCells(low, ratio, base64.b64encode(zlib.compress(planes.tobytes(), LEVEL)).decode())
