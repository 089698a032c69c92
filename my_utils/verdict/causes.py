"""What hiccups were: where the time that they cost went.

`my_utils run` records of each iteration what the host took from the training thread: collections of
garbage, time on a core, time in which it was ready to run and on no core. In the steps of hiccups,
what each of these lies above its median of the rank's other steps is its part of the lost time:

- "gc0" to "gc2": collections of that generation on the training thread
- "quota": it was ready to run, and the quota of its cgroup was used up
- "delay": it was ready to run, and other threads had the core
- "own": it was on a core: work of its own
- "wait": the rest. It waited for a disk, a lock or another thread, or the process was stopped

The largest part is the cause if it has half of the lost time; otherwise the cause is unknown.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from .run_data import HOST_COUNTERS, Matrix

__all__ = ["causes_of"]

MEASURED = 0.8  # of the hiccups: with fewer the cause is "not measured"
NAMED = 0.5  # of the lost time
LISTED = 0.2
NS_IN_US = 1000.0

Mask = npt.NDArray[np.bool_]


def causes_of(host: Mapping[str, Matrix], sizes: Matrix, meets: bool = False) -> dict[str, object]:
    """Details of a finding: "causes" with name and share of each part from 20 % on, the largest
    first, "cause", one of these names or "unknown", and "disk_pages" that were read in a hiccup.
    Empty where it was not measured.

    host: rank × step by counter, NaN where missing. sizes: rank × step, ns that a hiccup took
    longer, 0 in steps without. meets: the work of a step is what comes before its meeting, so that
    it may have begun at the end of the step before.

    >>> sizes = np.array([[0.0, 0.0, 0.0, 50e6]])
    >>> host = {"cpu_us": np.array([[10e3, 10e3, 10e3, 59e3]]),
    ...         "delay_us": np.zeros((1, 4)), "gc2_us": np.array([[0.0, 0.0, 0.0, 45e3]])}
    >>> causes_of(host, sizes)["causes"]
    [('gc2', 0.9)]
    """
    events = sizes > 0
    count, lost_us = int(events.sum()), float(sizes[events].sum()) / NS_IN_US
    where = events.copy()
    if meets:
        where[:, :-1] |= events[:, 1:]
    above = {
        name: _above_the_usual(host[name], where) for name in HOST_COUNTERS
        if name in host and count and np.isfinite(host[name][events]).mean() >= MEASURED
    }  # fmt: skip
    if above.get("cpu_us") is None or above.get("delay_us") is None:
        return {}
    known = {name: value for name, value in above.items() if value is not None}
    parts = _parts(known, lost_us)
    order = sorted(parts, key=lambda name: -parts[name])
    shares = [(name, round(parts[name] / lost_us, 3)) for name in order]
    detail: dict[str, object] = {
        "causes": [one for one in shares if one[1] >= LISTED],
        "cause": order[0] if shares[0][1] >= NAMED else "unknown",
    }
    pages = round(known.get("major_faults", 0.0) / count)
    return {**detail, "disk_pages": pages} if pages else detail


def _above_the_usual(values: Matrix, where: Mask) -> float | None:
    """The sum of what a counter lies above the rank's other steps in these; None where there are no
    others."""
    total = 0.0
    for series, here in zip(values, where, strict=True):
        calm = series[~here & np.isfinite(series)]
        if here.any() and not len(calm):
            return None
        if here.any():
            excess = np.nan_to_num(series[here] - np.median(calm))
            total += float(np.maximum(excess, 0).sum())
    return total


def _parts(above: Mapping[str, float], lost_us: float) -> dict[str, float]:
    """µs by part. What they have above the loss is taken off each of them."""
    parts = {name.removesuffix("_us"): above[name] for name in above if name.startswith("gc")}
    parts["own"] = max(above["cpu_us"] - sum(parts.values()), 0.0)
    parts["quota"] = min(above.get("quota_us", 0.0), above["delay_us"])
    parts["delay"] = above["delay_us"] - parts["quota"]
    total = sum(parts.values())
    fits = min(lost_us / total, 1.0) if total else 1.0
    parts = {name: part * fits for name, part in parts.items()}
    return {**parts, "wait": max(lost_us - total, 0.0)}
