"""Finds ranks that are slow now and then, and imbalance that moves from rank to rank.

A hiccup is a step in which a rank's own work, less the median of the others (of a rank alone: less
its own level), is 5 times the spread and 3 % of a step above the usual. If one stage has 80 % of
them, it is named, and otherwise they are "host hiccups": garbage collection, another job on the
host, the operating system.

What is left is imbalance: the mean over steps of the longest work less the mean of all, and by how
much the meetings are longer with it. It "moves" if ranks usually are apart; if only rare long steps
make it, they are host hiccups of many ranks.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from .blame import COVERED, FALSE_CHANGES, alike, is_regular
from .causes import describe_worker, find_causes
from .change_points import find_parts
from .kinds import Kind, kind_of_slow_stage
from .loss import LEAST_SHARE, LOW_SHARE, Loss, Remaining
from .quantiles import median
from .run_data import Integers, Matrix
from .work import Work, over_others

SCATTERS = 5.0
SCATTERS_ALONE = 2.5  # of a rank alone, whose calm steps are the only measure
LEAST_OF_STEP = 0.03
OFTEN = 0.5  # of the steps
LEAST_CALM = 8  # steps without hiccups, to know the usual by
STANDS_OUT = 3.0  # times the hiccups of the other ranks
ALONE = 0.8  # of all hiccups, with which a rank also has those inside the meetings
BROAD = 0.12  # of the imbalance, that a rank usually is off the mean: with less it is rare
ONE_RANKS = 0.75  # of the steps, in which imbalance that moves is not one rank's
FOLLOWS = 0.6  # correlation of the meetings with how far ranks are apart
ANYWHERE = 0.25  # of its share, that what is beside a stage must have of hiccups at any time
EXPLAINED = 0.5  # correlation with samples or tokens from which on they are named
LOWER_HALF = 1.028  # between the 10 % and the 40 % quantile of a normal distribution, in sigmas

Mask = npt.NDArray[np.bool_]


def hiccups(work: Work, left: Remaining, host: Mapping[str, Matrix] | None = None) -> None:
    """Adds the losses by them to `left`, and takes them off. host: what the host took from the
    group's ranks in the judged steps, by counter, where it was recorded."""
    own = left.own()
    excess = over_others(own) if len(own) > 1 else own - find_levels(own[0])
    scatters = SCATTERS if len(own) > 1 else SCATTERS_ALONE
    limit = max(scatters * _scatter(own, excess), LEAST_OF_STEP * work.step_ns)
    events = excess > limit
    if not events.any():
        return
    sizes = np.where(events, excess, 0)
    costs = work.saved_alone(own, sizes)
    rows = _ranks_that_stand_out(costs, sizes.mean(1), work.step_ns)
    without = own.copy()
    without[rows] -= sizes[rows]
    saved = work.saved(own, without)
    inside = None
    if len(rows) == 1 and sizes[rows[0]].sum() >= ALONE * sizes.sum():
        inside = _inside_the_meetings(work, own, rows[0], events[rows[0]], saved)
        saved = saved + inside
    if not rows or float(saved.mean()) < LEAST_SHARE * work.step_ns:
        return
    loss = _loss(work, np.array(rows, np.int64), events, sizes, saved)
    theirs = {name: values[rows] for name, values in (host or {}).items()}
    loss.detail |= find_causes(theirs, sizes[rows], len(work.meetings) > 0)
    if loss.kind == "input":
        loss.detail |= describe_worker(theirs, sizes[rows])
    if inside is not None and float(inside.mean()) > 0:
        loss.detail["inside_ns"] = float(inside.mean())
        left.take_off_meetings(inside)
    left.losses.append(loss)
    for row in rows:
        left.take_off(row, sizes[row], loss.part)


def find_levels(series: Matrix) -> Matrix:
    """The series as its levels, which change at change points."""
    levels = np.empty(len(series))
    for part in find_parts(series, FALSE_CHANGES):
        levels[part] = np.median(series[part])
    return levels


def _scatter(own: Matrix, excess: Matrix) -> float:
    """Of single steps, by the lower half of each rank's, which hiccups do not reach."""
    values = excess if len(own) == 1 else own
    low, high = np.quantile(values, [0.1, 0.4], axis=1)
    return float(np.median(high - low)) / LOWER_HALF


def _ranks_that_stand_out(
    costs: npt.NDArray[np.float64], sizes: npt.NDArray[np.float64], step_ns: float
) -> list[int]:
    """Those whose hiccups cost so much that the others' are no excuse, and about as much each; []
    if none does."""
    order = np.argsort(-costs)
    named: list[int] = []
    for row in order.tolist():
        if costs[row] < max(LOW_SHARE * step_ns, float(costs[order[0]]) / STANDS_OUT):
            break
        rest = np.delete(sizes, [*named, row])
        if len(rest) and sizes[row] < STANDS_OUT * max(float(np.median(rest)), 1.0):
            break
        named.append(row)
    if len(costs) == 2 and len(named) == 1:
        other = 1 - named[0]
        return named if sizes[named[0]] >= STANDS_OUT * sizes[other] else []
    return named


def _inside_the_meetings(work: Work, own: Matrix, row: int, events: Mask, saved: Matrix) -> Matrix:
    """Of a rank that alone has hiccups, those that fall into its work inside a meeting, per step:
    steps that are long while nobody's own work says why. If it has them in most steps, there is
    nothing to compare with, and it is as much slower inside as in all of its stages outside, if
    these are slow alike."""
    if not work.meets:
        return np.zeros(len(events))
    if events.mean() < OFTEN and (~events).sum() >= LEAST_CALM:
        return _long_for_no_reason(work, own, events, saved)
    others = np.median(np.delete(work.own, row, 0), axis=0)
    took = (others + work.bases_of_parts()).mean(0)
    factor = alike((work.own[row] - others).mean(0), took, work.parts_inside())
    return work.unseen(row, factor)


def _long_for_no_reason(work: Work, own: Matrix, events: Mask, saved: Matrix) -> Matrix:
    # What all ranks do in a step, such as an evaluation, is a reason.
    whole = median(own + work.in_meetings.sum(2), 0) - own.min(0)
    calm = whole[~events]
    usual = find_levels(np.where(events, np.median(calm), whole))
    low, high = np.quantile(calm, [0.1, 0.4])
    limit = max(SCATTERS * float(high - low) / LOWER_HALF, LEAST_OF_STEP * work.step_ns)
    longer = np.where(whole - usual > limit, whole - usual, 0)
    inside = np.maximum(longer - saved, 0)
    # Work after a step's last meeting makes the next step long: what is seen may be one step off.
    known = max(float(longer.sum() - saved.sum()), 0.0)
    # Pauses fall inside as often as outside, for the time there; many more are another's.
    there, elsewhere = np.median(work.in_meetings.sum(2).min(0)), np.median(own)
    if known > STANDS_OUT * float(saved.sum() * there / max(elsewhere, 1.0)):
        return np.zeros_like(inside)
    return inside * min(known / max(float(inside.sum()), 1.0), 1.0)


def _loss(work: Work, rows: Integers, events: Mask, sizes: Matrix, saved: Matrix) -> Loss:
    part, share = _part_of_events(work, rows, events, sizes)
    if share < COVERED:
        part = None
    kind: Kind = "host hiccups"
    if part is not None:
        kind = kind_of_slow_stage(work.parts[part])
    steps = np.flatnonzero(events[rows].any(0))
    loss = Loss(kind, saved, rows, part)
    loss.detail = {
        "hiccups": len(steps),
        "hiccup_ns": float(saved.sum()) / len(steps),
        "top_share": round(share, 3),
        "slow_step": int(steps[0]),
        "slow_steps": steps,
    }
    if is_regular(steps):
        loss.detail["every"] = int(steps[1] - steps[0])
    return loss


def _part_of_events(
    work: Work, rows: Integers, events: Mask, sizes: Matrix
) -> tuple[int | None, float]:
    """The part with 80 % of the excess of all hiccups, and the largest share."""
    sums = np.zeros(len(work.parts))
    for row in rows.tolist():
        at = events[row]
        if len(work.own) > 1:
            others = np.median(np.delete(work.own[:, at], row, 0), 0)
            usual = (
                np.median(work.own[row, ~at], 0)
                - np.median(np.delete(work.own, row, 0)[:, ~at], axis=(0, 1))
                if (~at).any()
                else 0.0
            )
            sums += (work.own[row, at] - others - usual).sum(0)
        else:
            calm = work.own[row, ~at] if (~at).any() else work.own[row]
            sums += (work.own[row, at] - np.median(calm, 0)).sum(0)
    share = float(sums.max() / max(float(sizes[rows][events[rows]].sum()), 1.0))
    usual_ns = np.median(work.own, axis=(0, 1)) + np.median(work.bases_of_parts(), axis=0)
    return (None if _falls_anywhere(sums, usual_ns) else int(sums.argmax())), share


def _falls_anywhere(excess: Matrix, usual: Matrix) -> bool:
    """Whether the parts beside the one with the most have their share, too: a stage that is most
    of a step has most of what happens at any time, and is not to blame for it. Arrays of parts, ns.

    >>> _falls_anywhere(np.array([89.0, 6.0, 5.0]), np.array([80.0, 10.0, 10.0]))
    True
    >>> _falls_anywhere(np.array([99.0, 1.0, 0.0]), np.array([80.0, 10.0, 10.0]))
    False
    """
    top = int(excess.argmax())
    rest, rest_usual = (float(np.delete(one, top).sum()) for one in (excess, usual))
    if min(rest_usual, float(usual[top])) <= LOW_SHARE * float(usual.sum()):
        return False
    return rest / rest_usual >= ANYWHERE * float(excess[top] / usual[top])


# --- imbalance that moves ---


def moving_imbalance(
    work: Work,
    left: Remaining,
    counters: Mapping[str, Matrix],
    joined: Mapping[str, Matrix] | None = None,
) -> None:
    """counters: "samples" and "tokens" of the group's ranks in the judged steps, if recorded.
    joined: those of all ranks that a step waits for, if these are more: the other stages of a
    pipeline. What is left then is what the ranks would take in the mean."""
    own = left.own()
    if len(own) < 2 or not work.meets:
        return
    seen = own.max(0) - own.mean(0)
    saved = seen * (1 + _follows(left, own))
    kind: Kind = "moving imbalance"
    detail: dict[str, object] = {}
    for name in ("tokens", "samples"):
        sizes = counters.get(name)
        explained = _explained(work, own, sizes, (joined or {}).get(name, sizes))
        if explained is not None and explained[1].mean() >= LEAST_SHARE * work.step_ns:
            detail = {"by": name, "correlation": explained[0]}
            saved = np.maximum(saved, explained[1])
            break
    if float(saved.mean()) < LEAST_SHARE * work.step_ns:
        return
    if not detail and np.bincount(own.argmax(0)).max() / own.shape[1] >= ONE_RANKS:
        return  # it does not move: that rank is slow, and too little of it can be seen
    apart = float(np.median(np.abs(own - own.mean(0))))
    if not detail and apart < BROAD * float(seen.mean()):
        if float(seen.mean()) < LEAST_SHARE * work.step_ns:
            return  # rare, and most of it only taken to be inside the meetings
        kind = "host hiccups"
    detail["spread_ns"] = float((own.max(0) - own.min(0)).mean())
    left.losses.append(Loss(kind, saved, detail=detail))
    left.parts[:] = left.parts.mean(0)


def _follows(left: Remaining, own: Matrix) -> float:
    """By how many ns the meetings are longer in a step for each ns that the longest work is above
    the mean: what makes a rank's own work long does the same to its work inside the meetings. 0.0
    where the two have little to do with each other; what all ranks share does not count, nor do
    drifts and levels."""
    mean = own.mean(0)
    apart, shared, bases = (_steadied(one) for one in (own.max(0) - mean, mean, left.bases.sum(1)))
    if float((shared**2).sum()):  # of both, what is not in what all ranks share
        apart, bases = (
            one - shared * float((one * shared).sum() / (shared**2).sum()) for one in (apart, bases)
        )
    scale = float(np.sqrt((apart**2).sum() * (bases**2).sum()))
    if not scale or float((apart * bases).sum()) < FOLLOWS * scale:
        return 0.0
    return float((apart * bases).sum() / (apart**2).sum())


def _steadied(series: Matrix) -> Matrix:
    places = np.arange(len(series))
    level = series - find_levels(series)
    steady: Matrix = level - np.polyval(np.polyfit(places, level, 1), places)
    return steady


def _explained(
    work: Work, own: Matrix, sizes: Matrix | None, of_all: Matrix | None
) -> tuple[float, Matrix] | None:
    """The correlation of a rank's share of work with its share of tokens, or of the step with the
    largest share, whichever is larger, and what equal shares
    would save a step: by the step's time for each token of the largest share of any rank."""
    if sizes is None or not np.isfinite(sizes).all() or float(np.ptp(sizes)) == 0:
        return None
    if of_all is None or not np.isfinite(of_all).all():
        of_all = sizes
    work_apart, sizes_apart = own - own.mean(0), sizes - sizes.mean(0)
    scale = float(np.sqrt((work_apart**2).sum() * (sizes_apart**2).sum()))
    correlation = float((work_apart * sizes_apart).sum()) / scale if scale else 0.0
    whole, largest = median(own + work.in_meetings.sum(2), 0), of_all.max(0)
    apart, whole = largest - largest.mean(), whole - whole.mean()
    squares = float((apart**2).sum())
    if squares:
        scale = np.sqrt(squares * max(float((whole**2).sum()), 1.0))
        correlation = max(correlation, float((apart * whole).sum()) / scale)
        slope = float((apart * whole).sum()) / squares
    else:  # the largest is always the same, on one rank or another
        slope = float((work_apart * sizes_apart).sum() / max(float((sizes_apart**2).sum()), 1.0))
    if correlation < EXPLAINED:
        return None
    return correlation, max(slope, 0.0) * (largest - of_all.mean(0))
