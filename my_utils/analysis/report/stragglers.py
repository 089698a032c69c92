"""Which ranks are slow, always or now and then, beyond what chance explains.

The time that a rank spends in a stage itself is compared with the median of its peers in the same
step. Stages in which ranks wait for one another are left out. Of the differences of a rank in a
stage, two figures are judged:

persistent: their median over the steps. It must stand out among the medians of all ranks (Rosner's
generalised ESD test, so that a fleet in which every rank is a little different names nobody), and
above its own standard error.

intermittent: the number of steps whose difference is far outside the scatter of single steps. A
rank is named when it has more of them than chance gives one rank. The expected number comes from
the other ranks' steps of that size (Poisson).

The limits grow with the number of series that are tested. So a run without stragglers names none,
whatever its size: the chance of a false name in a whole run is about FALSE_NAMES.

Rosner (1983), Percentage points for a generalized ESD many-outlier procedure, Technometrics 25(2).

The annotations are not strings here: msgspec evaluates them, from Python 3.14 on with the names of
the module that `public` gives the class.
"""

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from statistics import NormalDist
from typing import Any, Literal

import numpy as np

from ...core.public import public
from ..verdict.change_points import change_points
from ..verdict.probability import poisson_tail, t_tail
from ..verdict.quantiles import median, spread_of
from ..verdict.run_data import Integers, Matrix
from .grid import Grid
from .waits import Segments, working_paths

FALSE_NAMES = 0.01
LEAST_SHARE = 0.005  # of a step: what costs less is not a straggler, however sure
OUTLIER_SHARE = 0.05  # of a step: the same for a single step
RANKS_MIN = 4  # with fewer, no rank can be shown to be the exception
STEPS_MIN = 5
MEDIAN_ERROR = 1.2533  # the standard error of a median, in those of a mean: sqrt(pi / 2)
CLOCK_NS = 1000.0  # smaller differences count as none


@public("my_utils.analysis.report")
@dataclass
class Straggler:
    """A rank that is slow in a stage.

    steps: those in which it stood out; of a persistent one those in which the others waited for it.
    since: the first step of a persistent one, where it became slow in the middle of the run.
    cost_s: what all ranks together waited for it in these steps; where no stage synchronises, what
        it took longer than the median itself. saved_s: how much shorter the run had been, had it
        taken the median in them. slower_percent: in the stage, as the median of all steps where it
        is persistent and of `steps` where it is not.
    score: in standard errors or in the scatter of the ranks, whichever is less, for a persistent
        one; in the scatter of single steps for an intermittent one. peer_score: the largest of the
        ranks that are not named, to judge it by.
    also: other stages in which the rank is slow in the same way.
    """

    rank: int
    host: str
    stage: str
    kind: Literal["persistent", "intermittent"]
    steps: list[int] = field(default_factory=list)
    since: int | None = None
    cost_s: float = 0.0
    saved_s: float = 0.0
    slower_percent: float = 0.0
    score: float = 0.0
    peer_score: float = 0.0
    also: list[str] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        """The fields by name, as plain data that goes into JSON; times in seconds."""
        return asdict(self)


@dataclass
class _Found:
    """One rank (a row of the grid) slow in one stage. excess_ns: per step, over the median."""

    row: int
    path: int
    kind: Literal["persistent", "intermittent"]
    steps: Integers
    excess_ns: Matrix
    middle_ns: float
    score: float
    peer_score: float


def why_not_judged(grid: Grid) -> str | None:
    """Why no rank can be judged, whatever the times are; None if ranks can be judged."""
    if len(grid.ranks) < RANKS_MIN:
        return f"fewer than {RANKS_MIN} ranks"
    if len(grid.steps) - grid.warmup < STEPS_MIN:
        return f"fewer than {STEPS_MIN} steps"
    return None


def find_stragglers(grid: Grid, segments: Segments, hosts: dict[int, str]) -> list[Straggler]:
    """The stragglers, the most expensive first; one of each kind a rank at most. None are found
    where ranks are not judged."""
    if why_not_judged(grid) is not None:
        return []
    paths = working_paths(grid, segments.sync)
    step_ns = grid.middle_step_ns()
    found: list[_Found] = []
    for path in paths:
        found.extend(_of_stage(grid, path, len(paths), step_ns))
    named = [_priced(grid, segments, hosts, group) for group in _by_rank(found)]
    return sorted(named, key=lambda one: (-one.cost_s, one.rank))


def _of_stage(grid: Grid, path: int, stages: int, step_ns: float) -> Iterator[_Found]:
    (own,) = grid.of(path, "self_ns")
    own = own[:, grid.warmup :]
    excess = grid.over_peers(own)
    counts = np.isfinite(excess).sum(1)
    rows = np.flatnonzero(counts >= STEPS_MIN)
    if len(rows) < RANKS_MIN:
        return
    excess, middle_ns = excess[rows], float(median(own))
    level = median(excess, 1)
    scatter = float(np.hypot(median(spread_of(excess, 1)), CLOCK_NS))
    series = len(grid.ranks) * stages
    for at, score, peer in _persistent(level, scatter, counts[rows], series, step_ns):
        steps = np.flatnonzero(np.isfinite(excess[at]))
        yield _Found(int(rows[at]), path, "persistent", steps, excess[at], middle_ns, score, peer)
    single = excess - level[:, None]
    for at, steps, score, peer in _intermittent(single, scatter, series, step_ns):
        yield _Found(int(rows[at]), path, "intermittent", steps, excess[at], middle_ns, score, peer)


def _persistent(
    level: Matrix, scatter: float, counts: Integers, series: int, step_ns: float
) -> Iterator[tuple[int, float, float]]:
    """(rank's place, score, best score of the others) of those whose level stands out."""
    limit = FALSE_NAMES / series
    errors = MEDIAN_ERROR * scatter / np.sqrt(counts)
    among = np.hypot(spread_of(level[None, :], 1)[0], CLOCK_NS)
    above = level - float(median(level))
    scores = above / np.maximum(errors, among)
    sure = above > errors * -NormalDist().inv_cdf(limit)
    named = _outliers(above, limit) & sure & (above >= LEAST_SHARE * step_ns)
    peer = float(scores[~named].max(initial=0.0))
    for at in np.flatnonzero(named):
        yield int(at), float(scores[at]), peer


def _outliers(values: Matrix, limit: float) -> Any:
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
        elif taken > count + 16:  # hidden by as many others, it would be no exception
            break
    named = np.zeros(len(values), bool)
    named[order[:count]] = True
    return named


def _intermittent(
    single: Matrix, scatter: float, series: int, step_ns: float
) -> Iterator[tuple[int, Integers, float, float]]:
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
        named[at] = chance < FALSE_NAMES / series / len(own)
    scores = np.where(far, known, 0).max(1) / scatter
    peer = float(scores[~named].max(initial=0.0))
    for at in np.flatnonzero(named):
        steps = np.flatnonzero(far[at])
        yield int(at), steps, float(np.median(known[at, steps]) / scatter), peer


def _by_rank(found: list[_Found]) -> list[list[_Found]]:
    """Those of one rank and kind together, the one that takes most time first."""
    groups: dict[tuple[int, str], list[_Found]] = {}
    for one in found:
        groups.setdefault((one.row, one.kind), []).append(one)
    for group in groups.values():
        group.sort(key=lambda one: -float(np.nansum(one.excess_ns[one.steps])))
    return list(groups.values())


def _priced(
    grid: Grid, segments: Segments, hosts: dict[int, str], group: list[_Found]
) -> Straggler:
    first, rank = group[0], int(grid.ranks[group[0].row])
    here = np.zeros(len(grid.steps), bool)
    for one in group:
        here[grid.warmup + one.steps] = True
    result = Straggler(
        rank, hosts[rank], grid.paths[first.path], first.kind,
        score=round(first.score, 2), peer_score=round(first.peer_score, 2),
        also=[grid.paths[one.path] for one in group[1:]],
    )  # fmt: skip
    if first.kind == "persistent":
        result.since = _since(grid, first)
        if result.since is not None:
            here &= grid.steps >= result.since
    judged = np.sum([np.nan_to_num(one.excess_ns) for one in group], axis=0)
    excess = np.concatenate([np.zeros(grid.warmup), judged])
    if segments.sync:
        last = segments.rank == first.row
        blamed = last & np.isin(segments.lost_path, [one.path for one in group]) & here
        result.cost_s = float(np.nansum(segments.cost_ns[blamed])) * 1e-9
        saved = np.minimum(segments.late_ns, segments.lost_ns)
        result.saved_s = float(np.nansum(saved[blamed])) * 1e-9
        if first.kind == "persistent":
            here = blamed.any(0)
    else:
        result.cost_s = float(np.maximum(excess, 0)[here].sum()) * 1e-9
        result.saved_s = _saved_without_waits(grid, first.row, excess, here)
    result.steps = grid.steps[here].tolist()
    over_ns = np.nanmedian(first.excess_ns[first.steps])
    result.slower_percent = round(100 * float(over_ns) / max(first.middle_ns, 1), 2)
    return result


def _since(grid: Grid, one: _Found) -> int | None:
    """The step at which a persistent straggler became one; None: it always was."""
    known = np.flatnonzero(np.isfinite(one.excess_ns))
    changes = change_points(one.excess_ns[known], FALSE_NAMES)
    level = float(np.median(one.excess_ns[known]))
    for change in changes:
        if change.before < level / 4 and change.after > level / 2:
            return int(grid.steps[grid.warmup + known[change.at]])
    return None


def _saved_without_waits(grid: Grid, row: int, excess: Matrix, here: Any) -> float:
    """Where ranks do not wait for one another, the run ends with its slowest rank."""
    totals = np.nansum(grid.step_ns(), 1)
    others = float(np.delete(totals, row).max())
    lead = max(float(totals[row]) - others, 0.0)
    return min(lead, float(np.maximum(excess, 0)[here].sum())) * 1e-9
