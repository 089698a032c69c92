"""Finds the causes of hiccups: where their time was lost.

`my_utils run` records of each iteration what the host took from the training thread: collections of
garbage, time on a core, time in which it was ready to run and on no core; and what it waited for,
as sampled 50 times a second. In the steps of hiccups, what each of these is above the rank's
other steps is its part of the lost time:

- "gc0" to "gc2": collections of that generation on the training thread
- "quota": it was ready to run, and the quota of its cgroup was used up
- "delay": it was ready to run, and other threads had the core
- "own": it was on a core: its own work
- "stopped": the process was stopped by a signal, or its machine was
- "gil": it waited for the GIL
- "storage": it waited in a call that works on a file
- "page": it waited for a page of its memory that had to be read, or the kernel read it
- "memory": pages, and work of the kernel, while its cgroup lacked memory
- "other": it waited in another call: it slept, or waited for a thread, a process, the network
- "wait": it waited, and was not sampled

The first four and "stopped" are measured, and what they leave is shared out by the samples. If
these saw less than 30 % of that, the rest is nobody's. The largest part is the cause if it has half
of the lost time; otherwise the cause is unknown.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from .run_data import (
    HOST_COUNTERS,
    LOADER_COUNTERS,
    LOADER_DELAY,
    LOADER_READ,
    NS_IN_US,
    Matrix,
)

MEASURED = 0.8  # of the hiccups: with fewer the cause is "not measured"
NAMED = 0.5  # of the lost time
LISTED = 0.2
SEEN = 0.3  # of the waiting, from which on the samples stand for all of it
LEAST_REFAULTS = 16.0  # pages in a hiccup: with fewer, memory is not a cause
OF_FAULTS = 0.1  # that these are of the pages that the thread read, unless a limit was met
FAST_FAULTS = 10.0  # pages a ms of waiting, from which on it was for pages: too short for samples
LEAST_LIMITS = 8.0  # how often a limit of memory is met in a hiccup
FAULT_US = 25.0  # at most, of the kernel's work for a page that it reads
LEAST_SEEN = 3  # steps in which a worker was seen to do something
WORKER_MAX = 65_535
OF_ONE_WORKER = 0.7  # of what all workers did
SAMPLED = ("gil_us", "storage_us", "page_us", "other_us")
LATE = ("stopped_us", "limits_met", "stalled_us", "refaults")  # the sampler may count them some
LATE_STEPS = 3  # steps later, if it is kept from a core

Mask = npt.NDArray[np.bool_]


def find_causes(
    host: Mapping[str, Matrix], sizes: Matrix, meets: bool = False
) -> dict[str, object]:
    """Details of a finding: "causes" with name and share of each part from 20 % on, the largest
    first, "cause", one of these names or "unknown", "disk_pages" that were read in a hiccup, and,
    where it waited for a core, "ran_share" of the time that it wanted to run, and "others" that
    wanted to run then on its host; of full collections "objects" that they looked at. Empty where
    it was not measured.

    host: rank × step by counter, NaN where missing. sizes: rank × step, ns that a hiccup took
    longer, 0 in steps without. meets: the work of a step is what comes before its meeting, so that
    it may have begun at the end of the step before.

    >>> sizes = np.array([[0.0, 0.0, 0.0, 50e6]])
    >>> host = {"cpu_us": np.array([[10e3, 10e3, 10e3, 59e3]]),
    ...         "delay_us": np.zeros((1, 4)), "gc2_us": np.array([[0.0, 0.0, 0.0, 45e3]])}
    >>> find_causes(host, sizes)["causes"]
    [('gc2', 0.9)]
    """
    events = sizes > 0
    count, lost_us = int(events.sum()), float(sizes[events].sum()) / NS_IN_US
    above = _all_above(host, events, meets)
    if "cpu_us" not in above or "delay_us" not in above:
        return {}
    detail = _shares(_parts(above, lost_us, count), lost_us)
    if pages := round(above.get("major_faults", 0.0) / count):
        detail["disk_pages"] = pages
    if detail["cause"] in ("delay", "quota"):
        ran, ready = (float(np.nansum(host[name][events])) for name in ("cpu_us", "delay_us"))
        detail["ran_share"] = round(ran / (ran + ready), 3)
    if detail["cause"] == "delay" and (others := _known(host, "runnable", events)):
        detail["others"] = round(float(np.median(others))) - 1
    if detail["cause"] == "gc2" and (objects := _known(host, "gc_objects", events)):
        detail["objects"] = int(max(objects))
    return detail


def causes_of_all(host: Mapping[str, Matrix], took_ns: float, step_ns: float) -> dict[str, object]:
    """The same for time that each step has, so that nothing shows what is usual: of each part what
    does not fit into the rest of a step. took_ns: of a step of `step_ns`, in the mean.

    >>> host = {"cpu_us": np.full((1, 9), 95e3), "delay_us": np.zeros((1, 9)),
    ...         "gc2_us": np.full((1, 9), 85e3)}
    >>> causes_of_all(host, 90e6, 100e6)
    {'causes': [('gc2', 0.833)], 'cause': 'gc2'}
    """
    measured = [name for name in HOST_COUNTERS if name in host]
    if "cpu_us" not in host or "delay_us" not in host or took_ns <= 0:
        return {}
    steps = np.isfinite(host["cpu_us"]) & np.isfinite(host["delay_us"])
    if steps.mean() < MEASURED:
        return {}
    whole = {name: float(np.nansum(host[name][steps])) for name in measured}
    count = int(steps.sum())
    parts = _parts(whole, step_ns * count / NS_IN_US, count)
    elsewhere_us = max(step_ns - took_ns, 0.0) * count / NS_IN_US
    least = {name: max(part - elsewhere_us, 0.0) for name, part in parts.items()}
    detail = _shares(least, took_ns * count / NS_IN_US)
    if detail["cause"] == "gc2" and (objects := _known(host, "gc_objects", steps)):
        detail["objects"] = int(max(objects))
    return detail


def _shares(parts: Mapping[str, float], lost_us: float) -> dict[str, object]:
    order = sorted(parts, key=lambda name: -parts[name])
    shares = [(name, round(parts[name] / lost_us, 3)) for name in order]
    return {
        "causes": [one for one in shares if one[1] >= LISTED],
        "cause": order[0] if shares[0][1] >= NAMED else "unknown",
    }


def _known(host: Mapping[str, Matrix], name: str, events: Mask) -> list[float]:
    """The values of a counter in these steps, as far as there are some."""
    values = host[name][events] if name in host else np.zeros(0)
    known: list[float] = values[np.isfinite(values)].tolist()
    return known


# --- what is above the usual ---


def _all_above(host: Mapping[str, Matrix], events: Mask, meets: bool) -> dict[str, float]:
    """By counter; those that were not measured are missing."""
    where = events.copy()
    if meets:
        where[:, :-1] |= events[:, 1:]
    late = where.copy()
    for later in range(1, LATE_STEPS + 1):
        late[:, later:] |= where[:, :-later]
    found = {}
    for name in HOST_COUNTERS:
        if name in host and events.any() and np.isfinite(host[name][events]).mean() >= MEASURED:
            here = late if name in LATE else where
            value = _above_the_usual(host[name], here, late, name in SAMPLED)
            if value is not None:
                found[name] = value
    return found


def _above_the_usual(values: Matrix, where: Mask, not_calm: Mask, sampled: bool) -> float | None:
    """The sum of what a counter is above the rank's calm steps in these; None if there are no
    calm ones. Of what is sampled, the usual is the mean: most steps have no sample."""
    total = 0.0
    for series, here, busy in zip(values, where, not_calm, strict=True):
        calm = series[~busy & np.isfinite(series)]
        if not len(calm):
            calm = series[~here & np.isfinite(series)]
        if here.any() and not len(calm):
            return None
        if here.any():
            usual = calm.mean() if sampled else np.median(calm)
            total += float(np.maximum(np.nan_to_num(series[here] - usual), 0).sum())
    return total


# --- the parts ---


def _parts(above: Mapping[str, float], lost_us: float, count: int) -> dict[str, float]:
    """µs by part. What they have above the loss is taken off each of them."""
    parts = {name.removesuffix("_us"): above[name] for name in above if name.startswith("gc")}
    collected = sum(parts.values())  # in which the thread ran, or was ready to
    parts["own"] = max(above["cpu_us"] - collected, 0.0)
    delay = max(above["delay_us"] - max(collected - above["cpu_us"], 0.0), 0.0)
    parts["quota"] = min(above.get("quota_us", 0.0), delay)
    parts["delay"] = delay - parts["quota"]
    total = sum(parts.values())
    fits = min(lost_us / total, 1.0) if total else 1.0
    parts = {name: part * fits for name, part in parts.items()}
    waited = max(lost_us - total, 0.0)
    parts["stopped"] = min(above.get("stopped_us", 0.0), waited)
    parts |= _of_waiting(above, waited - parts["stopped"])
    return _of_the_kernel(above, parts, count)


def _of_waiting(above: Mapping[str, float], waited: float) -> dict[str, float]:
    """What the samples say of it. Without those for the GIL, a wait for it looks like any other."""
    if "other_us" not in above:
        return {"wait": waited}
    seen = {name.removesuffix("_us"): above[name] for name in SAMPLED if name in above}
    if "gil" not in seen:
        seen["wait"] = seen.pop("other")
    total = sum(seen.values())
    if total < SEEN * waited or not total:
        is_fast = above.get("major_faults", 0.0) * 1000 >= FAST_FAULTS * waited > 0
        return {**seen, "page": waited} if is_fast else seen
    return {name: part * waited / total for name, part in seen.items()}


def _of_the_kernel(
    above: Mapping[str, float], parts: dict[str, float], count: int
) -> dict[str, float]:
    """Own work of the kernel counts for what it was done for: reading pages, finding memory."""
    kernel = min(above.get("kernel_us", 0.0), parts["own"])
    if "page" in parts:
        reading = min(kernel, FAULT_US * above.get("major_faults", 0.0))
        parts |= {"own": parts["own"] - reading, "page": parts["page"] + reading}
        kernel -= reading
    taken = _of_memory(above, parts, kernel, count)
    for name in taken:
        parts[name] = parts.get(name, 0.0) - taken[name]
    return {**parts, "memory": sum(taken.values())}


def _of_memory(
    above: Mapping[str, float], parts: Mapping[str, float], kernel: float, count: int
) -> dict[str, float]:
    """What of other parts was for lack of memory, by the sign that says most: for how long threads
    of the cgroup waited for memory (version 2; the kernel counts only pages that had been used
    again and again), pages that had been dropped before, limits that were met."""
    page, storage = parts.get("page", 0.0), parts.get("storage", 0.0)
    most = {"page": page, "own": kernel, "storage": storage}
    taken = _taken(above.get("stalled_us", 0.0), most)
    limits = above.get("limits_met", 0.0) >= LEAST_LIMITS * count
    dropped = above.get("refaults", LEAST_REFAULTS * count * limits)
    is_enough = limits or dropped >= OF_FAULTS * above.get("major_faults", 0.0)
    was_dropped = is_enough and dropped >= LEAST_REFAULTS * count
    taken["page"] = max(taken["page"], page * was_dropped)
    taken["own"] = max(taken["own"], kernel * limits)
    return taken


def _taken(most: float, parts: dict[str, float]) -> dict[str, float]:
    """Of each part in turn, until there is no more."""
    taken = {}
    for name, part in parts.items():
        taken[name] = min(part, most)
        most -= taken[name]
    return taken


# --- workers ---


def describe_worker(host: Mapping[str, Matrix], waited_ns: Matrix) -> dict[str, object]:
    """Details of a finding about input.

    waited_ns: rank × step, what the ranks waited for input; steps with 0 do not count.

    "workers_do", what the loader's workers did most meanwhile: "storage", "delay" for waiting for a
    core, "runs", or "waits" if they did none of these half of the time; and "worker", the number of
    the one that did most, if it is one rank and one worker; of one that waits for storage
    "read_bytes" a step, where that was measured and is not 0: of some file systems the kernel
    counts nothing. Empty if it was not sampled.

    >>> host = {"loader_worker": np.array([[2.0, np.nan, 2.0, 2.0]]),
    ...         "loader_storage_us": np.array([[90e3, np.nan, 80e3, 70e3]]),
    ...         "loader_ran_us": np.array([[9e3, np.nan, 2e3, 1e3]])}
    >>> describe_worker(host, np.full((1, 4), 100e6))
    {'workers_do': 'storage', 'worker': 2}
    """
    if any(name not in host for name in LOADER_COUNTERS):
        return {}
    steps = waited_ns > 0
    worker = host["loader_worker"]
    known = steps & (worker >= 0) & (worker <= WORKER_MAX)  # any other number is damage
    if known.sum() < LEAST_SEEN:
        return {}
    worker, ran, storage = (host[name][known] for name in LOADER_COUNTERS)
    delay = np.nan_to_num(host[LOADER_DELAY][known]) if LOADER_DELAY in host else np.zeros(1)
    times = np.broadcast_to(ran + delay + storage, worker.shape)
    waited_us = float(waited_ns[known].sum()) / NS_IN_US
    does = "runs" if float(times.sum()) >= NAMED * waited_us else "waits"
    for name, part in (("storage", storage), ("delay", delay)):
        is_most = float(part.sum()) >= NAMED * float(times.sum())
        does = name if is_most and does != "waits" else does
    found: dict[str, object] = {"workers_do": does}
    of_worker = np.bincount(worker.astype(int), times)
    if len(steps) == 1 and of_worker.max() >= OF_ONE_WORKER * of_worker.sum():
        found["worker"] = int(of_worker.argmax())
        if does == "storage" and LOADER_READ in host:
            read = host[LOADER_READ][steps & (host["loader_worker"] == found["worker"])]
            if total := float(np.nansum(read)):
                found["read_bytes"] = total / int(steps.sum())
    return found
