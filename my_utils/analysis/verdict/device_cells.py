"""The time of a rank's stages on its device, moment by moment; see docs/runs/device-bound.md.

At each moment the device is in one stage, the innermost whose CUDA events are around the moment, or
in none; and so is the host. The moment counts

- for the device's stage, if no stage inside it has its own events: the device computes;
- for the device's stage, if the host has left it: the device is late;
- else for the host's stage, as launching if that is one of the device that has not begun there.

So a stage around others, such as `iter`, is not work of the device although it has events, and
`input` is never one. A stage that runs several times in a step counts each time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from .kinds import is_of_the_host
from .rank_files import Columns, depths_of

Integers = npt.NDArray[np.int64]
Moments = npt.NDArray[Any]  # ns, of float64 or int64, as the rows have them
Mask = npt.NDArray[np.bool_]

NONE = -1
FAR_NS = 1e17  # three years: no GPU time is so far from the begin of a run
NO_TIME = np.iinfo(np.int64).min  # the engine's MU_STAGE_NO_TIME


def rows_with_gpu_times(stages: Columns, origin_ns: int) -> Mask:
    """Of each row whether it has GPU times; those of damaged rows do not count. origin_ns: a moment
    of the run."""
    there: Mask = stages["cuda_begin_ns"] != NO_TIME
    if not there.any():
        return there
    since = stages["cuda_begin_ns"].astype("f8") - origin_ns
    took = stages["cuda_ms"] * 1e6
    there &= (np.abs(since) < FAR_NS) & (took >= 0) & (took < FAR_NS)
    return there


def of_the_device(paths: Sequence[str]) -> Mask:
    """Of each path whether it is one of the device if it has GPU times."""
    return ~np.array([is_of_the_host(name) for name in paths], bool)


class OnDevice(NamedTuple):
    """Between one edge and the next one: the stage of the device and that of the host, as places of
    rows, NONE without one; and whether the moment counts for the device's. edges: ns since the
    origin, rising, one more than there are moments. leaves: of each path, see `leaves_of`."""

    edges: Moments
    device: Integers
    host: Integers
    by_device: Mask
    leaves: Integers


def on_device(
    rows: Columns, is_timed: Mask, paths: Sequence[str], around: Integers, origin_ns: int
) -> OnDevice | None:
    """The arguments of `device_times`; None where no stage of the device has GPU times."""
    path = rows["path"].astype(np.int64)
    timed = is_timed & of_the_device(paths)[path]
    if not timed.any():
        return None
    leaves = leaves_of(np.unique(path[timed]), around)
    depths = depths_of(around)
    begins, ends = (rows[name] - origin_ns for name in ("begin_ns", "end_ns"))
    gpu_begins = rows["cuda_begin_ns"][timed] - origin_ns
    gpu_ends = gpu_begins + np.rint(rows["cuda_ms"][timed] * 1e6).astype(gpu_begins.dtype)
    edges = np.unique(np.concatenate([begins, ends, gpu_begins, gpu_ends]))
    host = _innermost(edges[:-1], begins, ends, depths[path])
    device = _innermost(edges[:-1], gpu_begins, gpu_ends, depths[path[timed]])
    device = np.where(device == NONE, NONE, np.flatnonzero(timed)[device])
    computes = (device != NONE) & (leaves[path[device]] == path[device])
    has_left = (host == NONE) | (ends[host] > ends[device])
    is_late = (device != NONE) & ~computes & has_left
    return OnDevice(edges, device, host, computes | is_late, leaves)


def device_times(
    rows: Columns, is_timed: Mask, paths: Sequence[str], around: Integers, origin_ns: int
) -> tuple[Moments, Moments]:
    """Of each row what it takes on the device's axis, and what of that is launching; ns.

    rows: the stages of one thread, with the columns of `RankStages.stages`. is_timed: those with
    GPU times. around: of each path the one around it, see `RankStages.around`.
    """
    own, launch = np.zeros(len(rows["path"])), np.zeros(len(rows["path"]))
    found = on_device(rows, is_timed, paths, around, origin_ns)
    if found is None:
        return own, launch
    lengths = np.diff(found.edges)
    _add(own, found.device, lengths, found.by_device)
    by_host = ~found.by_device & (found.host != NONE)
    path = rows["path"].astype(np.int64)
    launches = by_host & (found.leaves[path[found.host]] != NONE)
    _add(launch, found.host, lengths, launches)
    _add(own, found.host, lengths, by_host & ~launches)
    return own, launch


def _add(sums: Moments, rows: Integers, lengths: Moments, chosen: Mask) -> None:
    sums += np.bincount(rows[chosen], lengths[chosen], minlength=len(sums))


def leaves_of(on_device: Integers, around: Integers) -> Integers:
    """Of each path the stage of the device that it is or is inside of, with no other such stage
    further in; NONE without one. on_device: the stages of the device."""
    leaves = set(on_device.tolist())
    for path in on_device.tolist():
        while (path := int(around[path])) != NONE:
            leaves.discard(path)
    found = np.full(len(around), NONE)
    for path, outer in enumerate(around.tolist()):  # which comes first
        found[path] = path if path in leaves else NONE if outer == NONE else found[outer]
    return found


def _innermost(moments: Moments, begins: Moments, ends: Moments, depths: Integers) -> Integers:
    """At each moment the deepest interval that it is in, NONE without one. Of two of one depth
    that overlap, as those of several streams may, the earlier one has what they share."""
    found = np.full(len(moments), NONE)
    for depth in np.unique(depths):
        rows = np.flatnonzero(depths == depth)
        rows = rows[np.argsort(begins[rows], kind="stable")]
        last = np.maximum.accumulate(ends[rows])
        first = begins[rows]
        first[1:] = np.maximum(first[1:], last[:-1])
        at = np.searchsorted(first, moments, "right") - 1
        inside = (at >= 0) & (moments < last[at])
        found[inside] = rows[at[inside]]
    return found
