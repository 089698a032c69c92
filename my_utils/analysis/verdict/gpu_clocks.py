"""NVML data of a rank's GPU: a lower clock than the others', with the reason; critical errors."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping

import numpy as np

from .run_data import Integers, Matrix

LOWER = 0.95  # of the others' clock
OFTEN = 0.5  # of the readings, in which a reason holds
IDLE = 0x1  # a clock that nobody needs is low
REASONS = (
    ("thermal", 0x20 | 0x40),
    ("its power limit", 0x4),
    ("power brake", 0x80),
    ("hardware slowdown", 0x8),
    ("a clock that was set", 0x2 | 0x100),
    ("sync boost", 0x10),
)
"""Bits of nvmlClocksEventReasons, the most telling first."""


def lower_clock(counters: Mapping[str, Matrix], rows: Integers) -> dict[str, object]:
    """Details of a finding about the ranks of these rows: "gpu_mhz", "gpu_mhz_others", medians
    while the GPU was not idle, and "gpu_reason", "" where NVML gives none. Empty if the clock
    is not 5 % lower, or was not measured on both sides.

    counters: "gpu_sm_mhz" and "gpu_reasons", rank × step, NaN where missing.

    >>> counters = {"gpu_sm_mhz": np.array([[1980.0, 1980.0], [1095.0, np.nan]]),
    ...             "gpu_reasons": np.array([[0.0, 0.0], [32.0, np.nan]])}
    >>> lower_clock(counters, np.array([1]))
    {'gpu_mhz': 1095, 'gpu_mhz_others': 1980, 'gpu_reason': 'thermal'}
    """
    if "gpu_sm_mhz" not in counters:
        return {}
    clocks = counters["gpu_sm_mhz"]
    reasons = counters.get("gpu_reasons", np.full(clocks.shape, np.nan))
    bits = np.nan_to_num(reasons).astype(np.int64)
    clocks = np.where((bits & IDLE == 0) & np.isfinite(clocks), clocks, np.nan)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # ranks without a reading
        ours = float(np.nanmedian(clocks[rows]))
        theirs = float(np.nanmedian(np.delete(clocks, rows, 0)))
    if not ours < LOWER * theirs:
        return {}
    here = bits[rows][np.isfinite(clocks[rows])]
    held = (name for name, mask in REASONS if ((here & mask) != 0).mean() >= OFTEN)
    return {
        "gpu_mhz": round(ours),
        "gpu_mhz_others": round(theirs),
        "gpu_reason": next(held, ""),
    }


def describe_errors(counters: Mapping[str, Matrix], ranks: Integers) -> Iterator[str]:
    """A sentence for each rank whose GPU reported critical errors (Xid) while the run was recorded.

    counters: "gpu_xids", how many so far, and "gpu_last_xid", rank × step, NaN where missing.

    >>> counters = {"gpu_xids": np.array([[0.0, 2.0]]), "gpu_last_xid": np.array([[np.nan, 79.0]])}
    >>> list(describe_errors(counters, np.array([3])))
    ['rank 3: its GPU reported 2 critical errors, the last one Xid 79']
    """
    if "gpu_xids" not in counters or "gpu_last_xid" not in counters:
        return
    for rank, counts, numbers in zip(
        ranks.tolist(), counters["gpu_xids"], counters["gpu_last_xid"], strict=True
    ):
        known, counted = (one[np.isfinite(one)] for one in (numbers, counts))
        if len(known):
            count = int(counted.max(initial=0))
            how_many = f"{count:,} " if count else ""
            errors = (
                "a critical error," if count == 1 else f"{how_many}critical errors, the last one"
            )
            yield f"rank {rank}: its GPU reported {errors} Xid {int(known[-1])}"
