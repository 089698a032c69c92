"""Finds runs whose threads always wait for a core, because there are too few cores.

The kernel counts how long the training thread was ready to run and on no core. The median over
steps is what a usual step loses by it; waits in single steps are hiccups. Of ranks that meet, each
one may wait at another time, so only what the least of them loses is taken for the step's loss.
What one rank loses beyond the others makes it slow, and is found by the rule of slow ranks.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from .loss import LEAST_SHARE, Loss, Remaining
from .run_data import NS_IN_US, Matrix
from .work import Work

MEASURED = 0.8  # of the steps of each rank; with fewer it is not measured
OF_QUOTA = 0.5  # of the wait, from which on the quota is why


def short_of_cores(work: Work, left: Remaining, host: Mapping[str, Matrix]) -> None:
    """Adds the loss to `left`, and takes it off all parts and meetings alike.

    host: rank × step by counter, µs, NaN where missing: "cpu_us", "delay_us" and, where a quota was
    read, "quota_us", which is a part of the delay.
    """
    if not _is_measured(host.get("cpu_us")) or not _is_measured(host.get("delay_us")):
        return
    ready_us = np.nanmedian(host["delay_us"], axis=1)
    lost_ns = float(ready_us.min()) * NS_IN_US
    if lost_ns < LEAST_SHARE * work.step_ns:
        return
    steps_ns = left.own().max(0) + left.bases.sum(1)
    saved = np.clip(steps_ns, 0.0, lost_ns)
    cpu_us = np.nanmedian(host["cpu_us"], axis=1)
    ran = cpu_us / (cpu_us + ready_us)
    loss = Loss("short of cores", saved, np.arange(len(work.rows)))
    loss.detail = {"ran_shares": (float(ran.min()), float(ran.max()))}
    if _is_measured(host.get("quota_us")):
        quota_us = np.nanmedian(host["quota_us"], axis=1)
        loss.detail["by_quota"] = bool((quota_us >= OF_QUOTA * ready_us).all())
    left.losses.append(loss)
    kept = 1 - saved / np.maximum(steps_ns, 1.0)
    left.parts *= kept[:, None]
    left.bases *= kept[:, None]


def _is_measured(counter: Matrix | None) -> bool:
    return counter is not None and bool((np.isfinite(counter).mean(1) >= MEASURED).all())
