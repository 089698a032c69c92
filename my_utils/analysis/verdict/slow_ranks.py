"""Finds ranks that are slow, always or now and then, beyond what chance explains.

The rules name what costs a tenth of a step. This test names less, where it is sure. The time that
a rank spends in a stage itself is compared with the median of the ranks that it is compared with
in the same step. Stages in which ranks wait for one another are left out. Of the differences of a
rank in a stage, two figures are judged:

persistent: their median over the steps. It must stand out among the medians of all ranks (Rosner's
generalised ESD test, so that a fleet in which every rank is a little different names nobody), and
above its own standard error.

intermittent: the number of steps whose difference is far outside the scatter of single steps. A
rank is named when it has more of them than chance gives one rank. The expected number comes from
the other ranks' steps of that size (Poisson).

The limits grow with the number of series that are tested. So a run without slow ranks names none,
whatever its size: the chance of a false name in a whole run is about FALSE_NAMES.

Rosner (1983), Percentage points for a generalized ESD many-outlier procedure, Technometrics 25(2).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from .change_points import change_points
from .probability import poisson_tail, t_tail
from .quantiles import MAD_TO_SIGMA, median, spread_of
from .rank_files import SEPARATOR
from .run_data import Integers, Matrix, RunData
from .sync import Meetings

FALSE_NAMES = 0.01
LEAST_SHARE = 0.005  # of a step: what costs less is not named, however sure
OUTLIER_SHARE = 0.05  # of a step: the same for a single step
RANKS_MIN = 4  # with fewer, no rank can be shown to be the exception
STEPS_MIN = 5
MEDIAN_ERROR = 1.2533  # the standard error of a median, in those of a mean: sqrt(pi / 2)
CLOCK_NS = 1000.0  # smaller differences count as none
HIDES = 16  # as many others as hide one in the ESD test

SlowKind: TypeAlias = Literal["persistent", "intermittent"]


@dataclass
class SlowRank:
    """A rank, as its row, that is slow in one stage, as its number. steps: places of those in which
    it stands out. excess_ns: of each step, over the median of the ranks that it is compared with,
    NaN where it has no such step. usual_ns: the median of all ranks and steps.

    score: in standard errors or in the scatter of the ranks, whichever is less, for a persistent
    one; in the scatter of single steps for an intermittent one. peer_score: the largest of the
    ranks that are not named."""

    row: int
    stage: int
    kind: SlowKind
    steps: Integers
    excess_ns: Matrix
    usual_ns: float
    score: float
    peer_score: float


def why_not_tested(run: RunData, warmup: int) -> str | None:
    """Why no rank can be named, whatever the times are; None if ranks can be named."""
    if len(run.ranks) < RANKS_MIN:
        return f"fewer than {RANKS_MIN} ranks"
    if len(run.steps) - warmup < STEPS_MIN:
        return f"fewer than {STEPS_MIN} steps"
    return None


def slow_ranks(run: RunData, meetings: Meetings, warmup: int) -> list[SlowRank]:
    """warmup: so many steps at the beginning are left out."""
    if why_not_tested(run, warmup) is not None:
        return []
    stages = working_stages(run, meetings)
    step_ns = float(median(run.step_ns[:, warmup:]))
    found: list[SlowRank] = []
    for stage in stages:
        found += _of_stage(run, meetings, stage, warmup, len(run.ranks) * len(stages), step_ns)
    return found


def working_stages(run: RunData, meetings: Meetings) -> list[int]:
    """Those in which ranks do not wait: no rank meets others in them, nor around them."""
    meets: list[int] = np.flatnonzero(meetings.meets.any(0)).tolist()
    waiting = tuple(run.stages[at] + SEPARATOR for at in meets)
    return [
        at for at, name in enumerate(run.stages) if not f"{name}{SEPARATOR}".startswith(waiting)
    ]


def over_peers(own: Matrix, meetings: Meetings) -> Matrix:
    """Rank × step less the median of the ranks that a rank is compared with in the same step; of
    two ranks, less the other."""
    excess = own.copy()
    for rows in meetings.groups:
        excess[rows] -= median(own[rows], 0)
        if len(rows) == 2:  # it is half of what one has more than the other
            excess[rows] *= 2
    return excess


def taken_ns(run: RunData, stage: int) -> Matrix:
    """Rank × step: what a stage takes without those inside it, NaN where it did not run."""
    return np.where(np.isfinite(run.begins[..., stage]), run.totals[..., stage], np.nan)


def since_when(one: SlowRank) -> int | None:
    """The place of the step at which it became slow; None: it always was."""
    known = np.flatnonzero(np.isfinite(one.excess_ns))
    level = float(np.median(one.excess_ns[known]))
    for change in change_points(one.excess_ns[known], FALSE_NAMES):
        if change.before < level / 4 and change.after > level / 2:
            return int(known[change.at])
    return None


def _of_stage(
    run: RunData, meetings: Meetings, stage: int, warmup: int, tested: int, step_ns: float
) -> Iterator[SlowRank]:
    """tested: the number of series of the run."""
    own = taken_ns(run, stage)[:, warmup:]
    if _are_alike(own, step_ns):
        return
    excess = over_peers(own, meetings)
    counts = np.isfinite(excess).sum(1)
    rows = np.flatnonzero(counts >= STEPS_MIN)
    if len(rows) < RANKS_MIN:
        return
    excess = excess[rows]
    level = median(excess, 1)
    single = excess - level[:, None]
    if not _may_name(level, single, step_ns):
        return
    scatter = float(np.hypot(MAD_TO_SIGMA * median(median(np.abs(single), 1)), CLOCK_NS))
    usual_ns = float(median(own))

    def slow(at: int, kind: SlowKind, steps: Integers, score: float, peer: float) -> SlowRank:
        whole = np.append(np.full(warmup, np.nan), excess[at])
        row = int(rows[at])
        return SlowRank(row, stage, kind, warmup + steps, whole, usual_ns, score, peer)

    for at, score, peer in _persistent(level, scatter, counts[rows], tested, step_ns):
        yield slow(at, "persistent", np.flatnonzero(np.isfinite(excess[at])), score, peer)
    for at, steps, score, peer in _intermittent(single, scatter, tested, step_ns):
        yield slow(at, "intermittent", steps, score, peer)


def _are_alike(own: Matrix, step_ns: float) -> bool:
    """Whether in each step all ranks are so near to one another that `_may_name` says no: an excess
    is at most twice as far from 0 as they are apart, and the difference of two is twice that."""
    apart = np.fmax.reduce(own, axis=0) - np.fmin.reduce(own, axis=0)
    return bool(4 * np.fmax.reduce(apart, initial=np.nan) < LEAST_SHARE * step_ns)


def _may_name(level: Matrix, single: Matrix, step_ns: float) -> bool:
    """Whether anything is large enough to be named, which in most stages nothing is."""
    above = float(np.max(level)) - float(median(level))
    return above >= LEAST_SHARE * step_ns or bool(np.nanmax(single) > OUTLIER_SHARE * step_ns)


def _persistent(
    level: Matrix, scatter: float, counts: Integers, tested: int, step_ns: float
) -> Iterator[tuple[int, float, float]]:
    """(rank's place, score, best score of the others) of those whose level stands out."""
    limit = FALSE_NAMES / tested
    errors = MEDIAN_ERROR * scatter / np.sqrt(counts)
    among = np.hypot(spread_of(level[None, :], 1)[0], CLOCK_NS)
    above = level - float(median(level))
    scores = above / np.maximum(errors, among)
    sure = above > errors * -NormalDist().inv_cdf(limit)
    named = _outliers(above, limit) & sure & (above >= LEAST_SHARE * step_ns)
    peer = float(scores[~named].max(initial=0.0))
    for at in np.flatnonzero(named):
        yield int(at), float(scores[at]), peer


def _outliers(values: Matrix, limit: float) -> npt.NDArray[np.bool_]:
    """Which values are too large for the rest, by the generalised ESD test: at most a third."""
    order = np.argsort(-values, kind="stable")
    most = (len(values) - 1) // 3
    count = 0
    for taken in range(most):
        rest = values[order[taken + 1 :]]
        spread = np.hypot(rest.std(ddof=1), CLOCK_NS) * np.sqrt(1 + 1 / len(rest))
        distance = (values[order[taken]] - rest.mean()) / spread
        if t_tail(distance, len(rest) - 1) < limit:
            count = taken + 1
        elif taken > count + HIDES:  # hidden by as many others, it would be no exception
            break
    named = np.zeros(len(values), bool)
    named[order[:count]] = True
    return named


def _intermittent(
    single: Matrix, scatter: float, tested: int, step_ns: float
) -> Iterator[tuple[int, Any, float, float]]:
    """(rank's place, its steps, score, best score of the others) where outliers are too many."""
    known = np.nan_to_num(single)
    distance = -NormalDist().inv_cdf(FALSE_NAMES / single.size) * scatter
    far = known > max(distance, OUTLIER_SHARE * step_ns)
    sizes = np.sort(known[far])
    named = np.zeros(len(known), bool)
    for at in np.flatnonzero(far.any(1)):
        own = known[at, far[at]]
        # Small outliers of the others say nothing about large ones. The limit depends on the
        # rank's own outliers, so each of them counts as one more test.
        limit = np.median(own) / 2
        count = int(np.count_nonzero(own >= limit))
        others = len(sizes) - np.searchsorted(sizes, limit) - count
        chance = poisson_tail(count, (others + 0.5) / (len(known) - 1))
        named[at] = chance < FALSE_NAMES / tested / len(own)
    scores = np.where(far, known, 0).max(1) / scatter
    peer = float(scores[~named].max(initial=0.0))
    for at in np.flatnonzero(named):
        steps = np.flatnonzero(far[at])
        yield int(at), steps, float(np.median(known[at, steps]) / scatter), peer
