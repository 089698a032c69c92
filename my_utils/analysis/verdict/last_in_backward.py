"""Finds the rank that comes last inside backward: the others wait for its buckets.

Under DDP ranks meet in the buckets of gradients, so all of them leave backward together and its
length does not show who was slow. `my_utils run` looks at some steps, and records when each bucket
was ready on each rank. A bucket is reduced when the last rank has it.

What a rank takes from one bucket to the next, less the median of the others, is its excess at that
bucket; a rank that enters backward late has none. The rank with the largest excess over all of
backward is the candidate, and the bucket that of most of it. It is named if it takes longest to
that bucket in most of the steps, more often than chance would have it. On a busy machine another
rank that waits for a core often comes later still, so coming last is not a condition. The bucket
before is named, too, because a hook of a module delays what comes next.

Moments of different ranks are compared, so on several hosts their clocks must be lined up. What
is within the bound of their error is nobody's. On GPUs the moments are those at which the GPU
came there, where events say so, and those of enqueueing where they do not.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from .loss import LEAST_SHARE, LOW_SHARE, Loss, Remaining
from .probability import binomial_tail
from .ready_times import ReadyTimes
from .run_data import Integers, Matrix, RunData
from .work import Work, over_others

STEPS_LEAST = 5
OFTEN = 0.6  # of the steps that were looked at
CHANCE = 0.001  # that a rank takes longest so often although all are alike
AT_BUCKET = 0.5  # of a rank's excess, that a bucket and the next one must have to be named
LEAST_GAP_NS = 50_000.0  # on one host


@dataclass
class _Last:
    """A rank that comes last. row: of the group. bucket: None where its excess is spread over
    several. share: of the steps in which it comes last. slow_share: of those in which it takes
    longest. wait_ns: that the others wait for it where it does come last, the median, and at most
    what it usually takes longer. saved_ns: how much sooner the last bucket would be ready without
    what it usually takes longer, the mean. steps: how many were looked at."""

    row: int
    bucket: int | None
    share: float
    slow_share: float
    wait_ns: float
    saved_ns: float
    steps: int


@dataclass
class _Lateness:
    """row: of the rank for which the others wait most. place: of the collective at which they do,
    None where several have a part in it. is_last: of each step, whether the rank came last there;
    if there is no place, whether it made the others wait most. waited_ns: of each step."""

    row: int
    place: int | None
    is_last: npt.NDArray[np.bool_]
    waited_ns: Matrix


def last_inside(run: RunData, work: Work, left: Remaining, columns: Integers) -> None:
    """Looks for the rank that comes last in the backward of a group. If that costs enough, the loss
    is added to `left` and taken off; if it costs less, it is something to know. columns: the judged
    steps."""
    ready = run.ready
    if ready is None or ready.stage not in work.meeting_names or len(work.rows) < 2:
        return
    bound_ns = _bound_ns(run, ready, work.rows)
    if bound_ns is None:
        return
    name = _named if ready.buckets[0].kind == "bucket" else _named_in_collectives
    last = name(moments_of(ready, work.rows, np.isin(ready.columns, columns)), bound_ns)
    if last is None or last.saved_ns < LOW_SHARE * work.step_ns:
        return
    detail = _details(last, ready, run, work)
    inferred = [one for one in left.losses if last.row in one.rows and one.inside_ns is not None]
    if inferred:  # that it is slow inside was known, and is taken off
        inferred[0].detail |= detail
    elif last.saved_ns < LEAST_SHARE * work.step_ns:
        left.lasts[ready.stage] = detail
    else:
        saved = np.full(work.own.shape[1], last.saved_ns)
        part = work.meeting_parts[work.meeting_names.index(ready.stage)]
        rows = np.array([last.row], np.int64)
        left.losses.append(Loss("straggler", saved, rows, part, detail=detail))
        left.take_off_meetings(saved)


def _details(last: _Last, ready: ReadyTimes, run: RunData, work: Work) -> dict[str, object]:
    """What a finding says of it."""
    found: dict[str, object] = {
        "last_in": ready.stage,
        "last_rank": int(run.ranks[work.rows[last.row]]),
        "last_share": round(last.share, 3),
        "last_slow_share": round(last.slow_share, 3),
        "last_steps": last.steps,
        "last_wait_ns": last.wait_ns,
        "waiting": len(work.rows) - 1,
        "enqueued": run.device == "cuda" and ready.gpu_error_ns is None,
    }
    if ready.gpu_error_ns is not None:
        found["gpu_error_ns"] = ready.gpu_error_ns
    if last.bucket is not None:
        bucket = ready.buckets[last.bucket]
        found |= {"bucket": last.bucket, "bucket_bytes": bucket.bytes,
                  "bucket_modules": bucket.modules, "bucket_kind": bucket.kind}  # fmt: skip
        if last.bucket > 0:
            found["modules_before"] = ready.buckets[last.bucket - 1].modules
    return found


# --- moments ---


def _bound_ns(run: RunData, ready: ReadyTimes, rows: Integers) -> float | None:
    """Gaps below it are nobody's; None where moments cannot be compared."""
    least_ns = max(LEAST_GAP_NS, 2 * (ready.gpu_error_ns or 0.0))
    if len({run.hosts[row] for row in rows.tolist()}) == 1:
        return least_ns
    return None if run.clock_error_ns is None else max(least_ns, 2 * run.clock_error_ns)


def moments_of(ready: ReadyTimes, rows: Integers, wanted: npt.NDArray[np.bool_]) -> Matrix:
    """Rank × step × (begin of backward, then buckets), ns, rising along a step; of the steps that
    all of these ranks looked at. A bucket that got no gradient is ready with the one before it."""
    begins, times = ready.begins[rows][:, wanted], ready.ready[rows][:, wanted]
    here = np.isfinite(begins).all(0) & np.isfinite(times).any(2).all(0)
    begins, times = begins[:, here, None], times[:, here]
    moments: Matrix = np.fmax.accumulate(np.concatenate([begins, begins + times], axis=2), axis=2)
    return moments


# --- who ---


def last_in_steps(moments: Matrix, bound_ns: float) -> tuple[Integers, Integers]:
    """Of each step taken singly the rank that comes last, and the bucket at which it does: there
    the largest excess is, and no other rank comes to it later still; -1 where nobody does.
    moments: rank × step × (begin, then buckets), ns.

    >>> moments = np.array([[[0.0, 5e6, 9e6]], [[0.0, 5e6, 29e6]], [[0.0, 5e6, 9e6]]])
    >>> last_in_steps(moments, 1e6)
    (array([1]), array([1]))
    """
    excess = over_others(np.diff(moments, axis=2))
    ranks, steps, buckets = excess.shape
    flat = excess.transpose(1, 0, 2).reshape(steps, ranks * buckets).argmax(1)
    rows, at = flat // buckets, flat % buckets
    places = np.arange(steps)
    arrived = moments[:, places, at + 1]
    own = arrived[rows, places]
    arrived[rows, places] = -np.inf
    gap = np.minimum(own - arrived.max(0), excess[rows, places, at])
    is_last = gap > bound_ns
    return np.where(is_last, rows, -1), np.where(is_last, at, -1)


def _named(moments: Matrix, bound_ns: float) -> _Last | None:
    ranks, steps, places = moments.shape
    if steps < STEPS_LEAST:
        return None
    took = moments[..., -1] - moments[..., 0]
    between = np.diff(moments, axis=2)
    usual = np.median(over_others(took), axis=1)
    row = int(usual.argmax())
    bucket = _bucket(np.median(over_others(between), axis=1)[row])
    is_slowest = _is_above(took if bucket is None else between[..., bucket], row, bound_ns)
    slow_share = float(is_slowest.mean())
    if slow_share < OFTEN or _by_chance(int(is_slowest.sum()), steps, ranks, places - 1) > CHANCE:
        return None
    usual_ns = max(float(usual[row]), 0.0)
    saved_ns = float(_saved(took, moments[..., -1], row, usual_ns).mean())
    arrived = moments[..., -1] if bucket is None else moments[..., bucket + 1]
    is_last = _is_above(arrived, row, bound_ns)
    if saved_ns < bound_ns or not is_last.any():
        return None
    waited = arrived[row] - np.delete(arrived, row, 0).mean(0)
    wait_ns = float(np.median(np.minimum(waited[is_last], usual_ns)))
    return _Last(row, bucket, float(is_last.mean()), slow_share, wait_ns, saved_ns, steps)


def _is_above(values: Matrix, row: int, bound_ns: float) -> npt.NDArray[np.bool_]:
    """Of each step, whether the rank's value is above all others'. values: rank × step."""
    above: npt.NDArray[np.bool_] = values[row] - np.delete(values, row, 0).max(0) > bound_ns
    return above


def _named_in_collectives(moments: Matrix, bound_ns: float) -> _Last | None:
    """Like `_named`, for places at which ranks wait for each other."""
    ranks, steps, places = moments.shape
    if steps < STEPS_LEAST:
        return None
    late = _lateness(moments, bound_ns, AT_BUCKET)
    share = float(late.is_last.mean())
    if share < OFTEN or _by_chance(int(late.is_last.sum()), steps, ranks, places - 1) > CHANCE:
        return None
    waited_ns = float(np.median(late.waited_ns))
    return _Last(late.row, late.place, share, share, waited_ns, waited_ns, steps)


def _lateness(moments: Matrix, bound_ns: float, near: float) -> _Lateness:
    """Of collectives for which ranks wait, as in FSDP: a rank that comes late to one comes to the
    next as early as the others, which waited for it. So what the others lose at a collective is how
    much later than they it came, less what was late at the one before already.

    moments: rank × step × (begin, then collectives), ns. near: the share of what a rank costs that
    a collective and the next one must have.

    >>> moments = np.array([[[0.0, 5e6, 30e6, 34e6]], [[0.0, 5e6, 10e6, 34e6]]])
    >>> late = _lateness(moments, 1e6, 0.5)
    >>> late.row, late.place, late.waited_ns.tolist()
    (0, 1, [20000000.0])
    """
    order = np.sort(moments, axis=0)
    last, second = order[-1], order[-2]
    gaps = np.where(moments == last, moments - second, moments - last)  # negative if not last
    new = np.maximum(gaps[..., 1:] - np.maximum(gaps[..., :-1], 0), 0)
    usual = np.median(new, axis=1)
    row = int(usual.sum(1).argmax())
    place = int(usual[row].argmax())
    if usual[row, place : place + 2].sum() <= near * usual[row].sum():
        whole = new.sum(2)
        is_last = (whole.argmax(0) == row) & (whole[row] > bound_ns)
        return _Lateness(row, None, is_last, whole[row])
    waited = new[row, :, place : place + 2].sum(1)
    return _Lateness(row, place, new[row, :, place] > bound_ns, waited)


def _by_chance(count: int, steps: int, ranks: int, buckets: int) -> float:
    """That any rank takes longest to any bucket in `count` steps or more, if all are alike."""
    return min(1.0, ranks * buckets * binomial_tail(count, steps, 1 / ranks))


def _bucket(excess: Matrix) -> int | None:
    """The bucket at which a rank loses most, if it and the next one have half of all that it loses.
    excess: of each bucket, ns.

    >>> _bucket(np.array([1.0, 9.0, 2.0])), _bucket(np.array([2.0, 2.0, 2.0, 2.0, 2.0]))
    (1, None)
    """
    excess = np.maximum(excess, 0)
    bucket = int(excess.argmax())
    near = float(excess[bucket : bucket + 2].sum())
    return bucket if near > AT_BUCKET * float(excess.sum()) else None


def _saved(took: Matrix, ends: Matrix, row: int, usual_ns: float) -> Matrix:
    """How much sooner the last bucket of each step is ready without what the rank takes longer than
    the others, as far as that is usual: a wait for a core in some of the steps is left to it.
    took: from the begin to the last bucket; ends: when that is ready; rank × step."""
    sooner = ends.copy()
    sooner[row] -= np.clip(over_others(took)[row], 0, usual_ns)
    saved: Matrix = ends.max(0) - sooner.max(0)
    return saved
