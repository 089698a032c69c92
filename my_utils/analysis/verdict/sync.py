"""Finds where ranks wait for each other, and which of these places can be compared.

A run that `my_utils run` recorded says in which stages its ranks meet. Of other runs a stage counts
as meeting, "inferred", if

- its ends coincide over the ranks while its begins do not, in the median of the steps in which the
  begins are apart, on one host or with aligned clocks; without them after each rank's own offset
  is taken off; or
- its length mirrors another rank's excess: the rank with more to do elsewhere is as much shorter in
  it, and most others are long.

Where as many ranks are longer in a stage as are shorter, or there are two, lengths do not show
which of them wait. Such a stage is "undecided" if no other counts as meeting.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from .loss import LEAST_SHARE
from .quantiles import median
from .rank_files import SEPARATOR
from .run_data import Integers, Matrix, RunData, cut

SPREAD_RATIO = 0.25  # ends that spread less than a quarter of the begins coincide
LATE_STEPS = 0.5  # of the root mean square of the begins' spread, from which on a step counts
LEAST_SPREAD_NS = 20_000.0
LEAST_SPREAD = 0.001  # of a step: with less there is no wait to find
MIRROR_RATIO = 0.25
LEAST_PRESENT = 0.1  # of the ranks and steps that have the stage: gradients may be accumulated


@dataclass
class Meetings:
    """meets: rank × stage, whether the rank meets others in the stage. groups: rows that are
    compared with each other, sorted, each rank in one. inferred: stages found in the times.
    pipelines: stages in which ranks of different pipeline stages meet, whose waits differ.
    undecided: a stage in which, or outside of which, ranks wait so long (ns a step) that it may be
    a finding; of the group with the longest, None if there is none."""

    meets: npt.NDArray[np.bool_]
    groups: list[Integers]
    inferred: list[str] = field(default_factory=list)
    pipelines: list[str] = field(default_factory=list)
    undecided: tuple[str, float] | None = None


def find_meetings(run: RunData, columns: Integers) -> Meetings:
    """columns: the judged steps."""
    meets = np.zeros((len(run.ranks), len(run.stages)), bool)
    peers = np.zeros(len(run.ranks), np.int64) if run.peers is None else run.peers
    if run.sync_points is not None:
        groups = _recorded(run, meets, peers)
        inferred_points = [point.stage for point in run.sync_points if point.inferred]
        pipelines = [point.stage for point in run.sync_points if point.kind == "pipeline"]
        return Meetings(meets, groups, inferred_points, pipelines)
    groups = [np.flatnonzero(peers == peer) for peer in np.unique(peers)]
    inferred: set[str] = set()
    undecided = []
    for group in groups:
        found = _inferred(run, columns, group)
        for stage in found:
            meets[group, stage] = True
            inferred.add(run.stages[stage])
        if not found:
            undecided += _undecided(run, columns, group)
    longest = max(undecided, key=operator.itemgetter(1), default=None)
    return Meetings(meets, groups, sorted(inferred), undecided=longest)


def _recorded(run: RunData, meets: npt.NDArray[np.bool_], peers: Integers) -> list[Integers]:
    """Fills `meets`. Ranks that meet directly or through others, of one pipeline stage."""
    leader = np.arange(len(run.ranks))
    stages = {name: number for number, name in enumerate(run.stages)}
    for point in run.sync_points or ():
        if len(point.members) == 1:
            continue
        rows = np.arange(len(run.ranks))
        if point.members:
            rows = np.flatnonzero(np.isin(run.ranks, point.members))
        if point.stage in stages:
            meets[rows, stages[point.stage]] = True
        if len(rows):
            joined = np.unique(leader[rows])
            leader[np.isin(leader, joined)] = joined[0]
    keys = leader * (int(peers.max(initial=0)) + 1) + peers
    if not meets.any():
        keys = peers
    return [np.flatnonzero(keys == key) for key in np.unique(keys)]


def _inferred(run: RunData, columns: Integers, group: Integers) -> list[int]:
    if len(group) < 2 or not len(columns):
        return []
    at = np.ix_(group, columns)
    least = _least_spread(float(median(run.step_ns[at])))
    hosts = {run.hosts[row] for row in group.tolist()}
    is_aligned = len(hosts) == 1 or run.clock_error_ns is not None
    by_clock = least
    if run.clock_error_ns is not None and len(hosts) > 1:
        by_clock = max(least, 4 * run.clock_error_ns)
    found = []
    for stage in range(len(run.stages)):
        begins, ends = run.begins[..., stage][at], run.ends[..., stage][at]
        here = np.isfinite(begins) & np.isfinite(ends)
        if here.mean() < LEAST_PRESENT:
            continue
        if (
            (is_aligned and _ends_coincide(begins, ends, by_clock, True))
            or _ends_coincide(begins, ends, least, False)
            or _mirrors(run, at, stage, least)
        ):
            found.append(stage)
    return _inner(run.stages, found)


def _inner(names: Sequence[str], stages: list[int]) -> list[int]:
    """Of stages inside one another the inner ones: one around a meeting ends with it."""
    return [
        stage
        for stage in stages
        if not any(names[other].startswith(names[stage] + SEPARATOR) for other in stages)
    ]


def _least_spread(step_ns: float) -> float:
    return max(LEAST_SPREAD_NS, LEAST_SPREAD * step_ns)


def leave_together(run: RunData, rows: Integers, columns: Integers, stage: int) -> bool:
    """Whether these ranks leave a stage at the same moment, however late they came."""
    moments = [cut(one[..., stage], rows, columns) for one in (run.begins, run.ends)]
    hosts = {run.hosts[row] for row in rows.tolist()}
    is_aligned = len(hosts) == 1 or run.clock_error_ns is not None
    return _ends_coincide(moments[0], moments[1], LEAST_SPREAD_NS, is_aligned)


def _ends_coincide(begins: Matrix, ends: Matrix, least: float, is_aligned: bool) -> bool:
    has_it = (np.isfinite(begins) & np.isfinite(ends)).any(0)
    if not has_it.any():
        return False  # a stage that these ranks did not have in these steps
    if not has_it.all():
        begins, ends = begins[:, has_it], ends[:, has_it]
    apart = [moments - median(moments, 0) for moments in (begins, ends)]
    if not is_aligned:
        apart = [one - median(one, 1)[:, None] for one in apart]
    spread_begins, spread_ends = (np.nanmean(np.abs(one), axis=0) for one in apart)
    if float(spread_begins.mean()) < least:
        return False
    # Where a rank comes late in some steps only, the others say nothing.
    late = spread_begins >= LATE_STEPS * np.sqrt(np.mean(spread_begins**2))
    coincide = median(spread_ends[late]) <= SPREAD_RATIO * median(spread_begins[late])
    return bool(coincide)


def _mirrors(run: RunData, at: tuple[Integers, ...], stage: int, least: float) -> bool:
    if at[0].shape[0] < 3:
        return False
    own, rest = _from_the_middle(run, at, stage)
    shorter, longer = np.maximum(-own, 0).sum(), np.maximum(own, 0).sum()
    return bool(shorter >= 2 * longer) and _is_mirror(own, rest, least)


def _undecided(run: RunData, columns: Integers, group: Integers) -> list[tuple[str, float]]:
    """The stages that mirror the rest of the step on both sides, with what the longest rank takes
    more there than the shortest."""
    if len(group) < 2 or not len(columns):
        return []
    at = np.ix_(group, columns)
    step_ns = float(median(run.step_ns[at]))
    found = []
    for stage, name in enumerate(run.stages):
        own, rest = _from_the_middle(run, at, stage)
        apart_ns = float(np.ptp(own, axis=0).mean())
        if apart_ns >= LEAST_SHARE * step_ns and _is_mirror(own, rest, _least_spread(step_ns)):
            found.append((name, apart_ns))
    return found


def _from_the_middle(run: RunData, at: tuple[Integers, ...], stage: int) -> tuple[Matrix, Matrix]:
    """rank × step, ns: the time in a stage and outside, each less its median over the ranks."""
    own = run.totals[..., stage][at]
    rest = run.step_ns[at] - own
    return own - np.median(own, 0), rest - median(rest, 0)


def _is_mirror(own: Matrix, rest: Matrix, least: float) -> bool:
    known = np.isfinite(rest)
    # By squares: one rank of many with more to do is lost in a mean of amounts.
    excess, left = (float(np.sqrt(np.mean(one[known] ** 2))) for one in (rest, own + rest))
    return excess >= least and left <= MIRROR_RATIO * excess
