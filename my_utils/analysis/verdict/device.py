"""Judges a run on CUDA by the times of its device.

Host times are times of enqueueing there. What a stage takes the device, and what of a stage of the
host the device does not hide, `device_cells` has, and for how long the device waits for launches. A
step goes from the device's end of the step before to its own, so that a host that runs ahead does
not shorten it. Copies to the device, which the host waits for, say nothing about launching kernels.

A rank that waits in a meeting of the device hides its host stages behind that wait, too. Without it
they would be as long to be seen as on the rank that all wait for, as far as the host takes as long
for them. So much of the wait is given back to them, and a loader that is slow on all ranks is not
blamed on the one that happens to be last. In a run that is bound by launches this holds for the
stages of the device as well, which take as long as they are enqueued.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from .device_cells import device_times, leaves_of, of_the_device
from .kinds import kind_of_stage
from .quantiles import median
from .rank_files import SEPARATOR
from .run_data import GpuTimes, Integers, Matrix, RunData

LAUNCH = "launch"
LEAST_STEPS = 0.8
TRAILS_NS = 200_000.0
TRAILS_ERRORS = 2.0
TRAILS_SHARE = 0.01  # of a step
LONG_STAGE = 0.1  # of the device's time
LEAST_TIMED = 0.5  # of the steps, in which a stage of the device has GPU times
ALIKE = 0.9  # of the last rank's time to enqueue a step, that others must take to be launch-bound
AHEAD_MAX = 0.5  # of a step, from which on a host may be held back by a full queue


@dataclass
class DeviceView:
    """run: with the times of the device. stages: names of those for which kernels are launched.
    is_launch_bound: GPU ends trail host ends by next to nothing. busy_ns: what the device computes
    a step, the mean of all ranks. untimed_share: of the judged steps, what is in no stage."""

    run: RunData
    stages: frozenset[str]
    is_launch_bound: bool
    busy_ns: float
    untimed_share: float


def has_gpu_times(run: RunData, columns: Integers) -> bool:
    """Whether enough of the judged steps have GPU times on all ranks."""
    if run.gpu is None or not len(columns):
        return False
    timed = np.isfinite(run.gpu.totals[:, columns][..., of_the_device(run.stages)]).any(2)
    return bool(timed.mean() >= LEAST_STEPS)


def by_the_device(run: RunData) -> RunData | None:
    """The run with the times of the device; None if it has none, or too few to be judged by them.
    Steps without GPU times, and those after them, do not count."""
    columns = np.flatnonzero(np.isfinite(run.step_ns).all(0))
    if run.device != "cuda" or run.gpu is None or not has_gpu_times(run, columns):
        return None
    seen = device_view(run, columns).run
    known = np.isfinite(run.gpu.totals[..., of_the_device(run.stages)])
    timed: npt.NDArray[np.bool_] = np.any(known, 2)
    timed = np.column_stack([timed[:, :1], timed[:, 1:] & timed[:, :-1]])
    return replace(seen, step_ns=np.where(timed, seen.step_ns, np.nan))


def device_view(run: RunData, columns: Integers) -> DeviceView:
    """columns: the judged steps. The run must have GPU times."""
    assert run.gpu is not None
    gpu = run.gpu
    timed = np.isfinite(gpu.totals[:, columns]).mean((0, 1)) >= LEAST_TIMED
    around = _around(run.stages)
    leaves = leaves_of(np.flatnonzero(timed & of_the_device(run.stages)), around)
    device = _in_order(gpu, columns, np.flatnonzero(leaves == np.arange(len(leaves))))
    totals = np.zeros((*run.totals.shape[:2], len(run.stages) + 1))
    totals[..., :-1], totals[..., -1] = _taken(run, gpu, around)
    moving = ("h2d", "communication")  # data: no kernels of the model are launched in these
    launched = [at for at in device if kind_of_stage(run.stages[at]) not in moving] or device
    is_launch_bound = _is_launch_bound(run, gpu, device, launched, columns)
    _unhide(run, gpu, totals, device, is_launch_bound)
    begins, ends = run.begins.copy(), run.ends.copy()
    begins[..., device], ends[..., device] = gpu.begins[..., device], gpu.ends[..., device]
    last = _last_ends(gpu, device)
    step_begins = np.concatenate([run.step_begins[:, :1], last[:, :-1]], axis=1)
    if run.begins_anew is not None:
        step_begins = np.where(run.begins_anew, run.step_begins, step_begins)
    is_over = np.isfinite(run.step_ns) & np.isfinite(last) & np.isfinite(step_begins)
    nothing = np.full((*totals.shape[:2], 1), np.nan)
    seen = replace(
        run,
        stages=[*run.stages, LAUNCH],
        begins=np.concatenate([begins, nothing], axis=2),
        ends=np.concatenate([ends, nothing], axis=2),
        totals=totals,
        step_begins=step_begins,
        step_ns=np.where(is_over, last - step_begins, run.step_ns),
        gpu=None,
    )
    busy = np.nan_to_num(gpu.totals[:, columns][..., launched]).sum(2)
    names = frozenset(run.stages[stage] for stage in launched)
    untimed = _untimed_share(seen, columns)
    return DeviceView(seen, names, is_launch_bound, float(busy.mean()), untimed)


def _taken(run: RunData, gpu: GpuTimes, around: Integers) -> tuple[Matrix, Matrix]:
    """What each stage takes on the device's axis, and for how long the device waits for launches.
    Where the run does not say it, a stage counts from its first begin to its last end."""
    if gpu.own is not None and gpu.launch is not None:
        return gpu.own, gpu.launch
    own, launch = np.zeros(run.totals.shape), np.zeros(run.totals.shape[:2])
    for rank in range(len(run.ranks)):
        there = np.isfinite(run.begins[rank]) & np.isfinite(run.ends[rank])
        timed = np.isfinite(gpu.totals[rank]) & np.isfinite(gpu.begins[rank])
        steps, stages = np.nonzero(there)
        rows = {
            "path": stages, "begin_ns": run.begins[rank][there], "end_ns": run.ends[rank][there],
            "cuda_begin_ns": gpu.begins[rank][there],
            "cuda_ms": (gpu.ends[rank] - gpu.begins[rank])[there] * 1e-6,
        }  # fmt: skip
        taken, launches = device_times(rows, timed[there], run.stages, around, 0)
        own[rank][there] = taken
        launch[rank] = np.bincount(steps, launches, minlength=len(run.steps))
    return own, launch


def _around(stages: Sequence[str]) -> Integers:
    """Of each stage the place of the one around it, -1 where there is none."""
    places = {name: at for at, name in enumerate(stages)}

    def outer(name: str) -> int:
        while SEPARATOR in name:
            name = name.rpartition(SEPARATOR)[0]
            if name in places:
                return places[name]
        return -1

    return np.array([outer(name) for name in stages], np.int64)


def _untimed_share(seen: RunData, columns: Integers) -> float:
    """Of each rank in all steps together: what the host does at the end of a step may be in the
    next one of the device."""
    step_ns = seen.step_ns[:, columns].sum(1)
    untimed = np.maximum(step_ns - seen.totals[:, columns].sum((1, 2)), 0)
    return float(untimed.sum() / step_ns.sum())


def _in_order(gpu: GpuTimes, columns: Integers, device: Integers) -> list[int]:
    first = gpu.begins[:, columns]
    earliest = np.fmin.reduce(first[..., device], axis=2)  # NaN in steps without GPU times
    begins = [float(median(first[..., stage] - earliest)) for stage in device.tolist()]
    order: list[int] = device[np.argsort(begins, kind="stable")].tolist()
    return order


def _is_launch_bound(
    run: RunData, gpu: GpuTimes, every_stage: list[int], device: list[int], columns: Integers
) -> bool:
    """Of the stages that launch kernels, those count that take a tenth of their time, and the one
    whose GPU end trails most decides: a device that is behind in one of them is not starved. A
    meeting ends when the last rank has come, so its end says nothing, if there is any other stage.

    A rank that waits for the others lets its host run ahead. Then the rank that all wait for
    decides, if the hosts of the others take as long to enqueue a step."""
    took = np.nan_to_num(gpu.totals[:, columns][..., device]).sum((0, 1))
    device = [at for at, ns in zip(device, took, strict=True) if ns >= LONG_STAGE * took.sum()]
    meetings = {point.stage for point in run.sync_points or ()}
    device = [at for at in device if run.stages[at] not in meetings] or device
    trails = gpu.ends[:, columns][..., device] - run.ends[:, columns][..., device]
    most = np.where(np.isfinite(trails), trails, -np.inf).max(2)
    step_ns = run.step_ns[:, columns]
    limit = np.maximum(TRAILS_NS, TRAILS_ERRORS * gpu.error_ns[:, columns])
    limit = np.maximum(limit, TRAILS_SHARE * np.nan_to_num(step_ns))
    known = np.isfinite(most)
    if not known.any():
        return False
    is_bound = most < limit
    if is_bound[known].mean() >= LEAST_STEPS:
        return True
    enqueued = run.totals[:, columns][..., every_stage].sum(2)
    is_ahead = most >= AHEAD_MAX * step_ns
    lasts_bound: list[float] = []
    for rows, _, waits in _waits(run, gpu, every_stage):
        last = waits[:, columns].sum(2).argmin(0)[None]
        lasts_bound.append(float(np.take_along_axis(is_bound[rows], last, 0).mean()))
        is_alike = enqueued[rows] >= ALIKE * np.take_along_axis(enqueued[rows], last, 0)
        is_bound[rows] |= is_alike & ~is_ahead[rows]
    return bool(lasts_bound) and min(lasts_bound) >= LEAST_STEPS <= is_bound.mean()


def _waits(
    run: RunData, gpu: GpuTimes, device: list[int]
) -> list[tuple[Integers, list[int], Matrix]]:
    """Of ranks that meet on the device, and are of one pipeline stage: their rows, the stages, and
    how long each waits, rank × step × stage: longer than the one that waits least."""
    peers = np.zeros(len(run.ranks), np.int64) if run.peers is None else run.peers
    stages: dict[tuple[int, ...], list[int]] = {}
    for point in run.sync_points or ():
        inside = np.isin(run.ranks, point.members) if point.members else np.ones(len(peers), bool)
        for peer in np.unique(peers[inside]):
            rows = tuple(np.flatnonzero(inside & (peers == peer)).tolist())
            if len(rows) > 1 and point.stage in run.stages:
                at = run.stages.index(point.stage)
                if at in device and at not in stages.setdefault(rows, []):
                    stages[rows].append(at)
    found = []
    for rows, met in stages.items():
        lengths = gpu.totals[np.array(rows)][..., met] if met else np.zeros(0)
        if lengths.size:
            found.append((np.array(rows), met, np.nan_to_num(lengths - lengths.min(0))))
    return found


def _unhide(
    run: RunData, gpu: GpuTimes, totals: Matrix, device: list[int], with_device: bool
) -> None:
    """Gives back to stages what of them is hidden behind a wait only; changes `totals`."""
    met = {run.stages.index(one.stage) for one in run.sync_points or () if one.stage in run.stages}
    stages = [at for at in range(len(run.stages)) if with_device or at not in device]
    for rows, meetings, waits in _waits(run, gpu, device):
        left = waits.sum(2)
        last = left.argmin(0)[None]
        for stage in stages:
            if stage in met:
                continue
            seen, raw = totals[rows, :, stage], run.totals[rows, :, stage]
            seen_of_last, raw_of_last = (np.take_along_axis(one, last, 0) for one in (seen, raw))
            as_on_last = seen_of_last - np.maximum(raw_of_last - raw, 0)
            more = np.clip(as_on_last - seen, 0, left)
            totals[rows, :, stage] += more
            left = left - more
        kept = waits * (left / np.maximum(waits.sum(2), 1.0))[..., None]
        for place, meeting in enumerate(meetings):
            totals[rows, :, meeting] -= waits[..., place] - kept[..., place]


def _last_ends(gpu: GpuTimes, device: list[int]) -> Matrix:
    """rank × step: when the device was through with it, or with the step before if it had none."""
    ends = gpu.ends[..., device]
    last = np.where(np.isfinite(ends), ends, -np.inf).max(2)
    latest: Matrix = np.maximum.accumulate(last, axis=1)
    return latest
