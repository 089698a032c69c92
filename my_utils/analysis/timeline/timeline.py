"""Parts a run where it changes, and judges each part by the rules of a run."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from ..verdict.kinds import UNTIMED
from ..verdict.result import Finding, Verdict
from ..verdict.rules import judged_columns
from ..verdict.run_data import Integers, RunData
from ..verdict.sync import find_meetings
from ..verdict.work import Work, measure_work, over_others
from .changes import LEAST_SHARE, Change, Drift, find_changes, step_times
from .levels import PART_MIN, WINDOW_MIN
from .periods import Period, find_periods

STEPS_MIN = 4 * PART_MIN * WINDOW_MIN  # judged steps, from which on a run is parted
SAME_LEVEL = 0.04  # of a step, by which two parts may differ that are one
STAGE_SHARE = 0.8  # of a change, which a stage must have to be named
RESTART_NEAR = 0.01  # of the run, between a change and a restart

Judge = Callable[[RunData, tuple[int, int]], Verdict]


@dataclass
class Part:
    """Steps in which one verdict holds.

    first_step, last_step: both belong to it. step_ns: the mean of a step in it. verdict: on these
    steps alone. drift: by how much steps become longer little by little, as a part of the first,
    or shorter below 0; None where they do not. longer: by how much a step takes longer than in the
    part before, as a part of that one; 0.0 in the first. stage: the one with most of that, None for
    several. slow: ranks whose own work takes longer than that of the others, by a twentieth of a
    step or more; slow_in: the stage. restarted: whether it begins with a new attempt.
    """

    first_step: int
    last_step: int
    step_ns: float
    verdict: Verdict
    drift: float | None = None
    longer: float = 0.0
    stage: str | None = None
    slow: tuple[int, ...] = ()
    slow_in: str | None = None
    restarted: bool = False

    @property
    def finding(self) -> Finding | None:
        """What costs most in it."""
        return self.verdict.costly[0] if self.verdict.costly else None


@dataclass
class Timeline:
    """parts: in their order; one where nothing changes. periods: what comes back, the most costly
    first."""

    parts: list[Part] = field(default_factory=list)
    periods: list[Period] = field(default_factory=list)

    @property
    def worst(self) -> Part | None:
        """The part whose finding costs most time; None where no part has one."""
        found = [one for one in self.parts if one.finding is not None]
        return max(found, key=_cost_ns, default=None)

    def part_at(self, step: int) -> Part | None:
        """The part in which the step is; before the first one, in the warm-up, the first. None
        where the run has no parts."""
        begun = [one for one in self.parts if one.first_step <= step]
        return begun[-1] if begun else next(iter(self.parts), None)


def _cost_ns(part: Part) -> float:
    one = part.finding
    return 0.0 if one is None else one.cost_ns_a_step * part.verdict.judged_steps


def make_timeline(run: RunData, judge: Judge, warmup: int | None = None) -> Timeline:
    """judge: the verdict on a half-open range of steps. warmup: steps at the beginning that are
    left out, as for a verdict. Thread-safe; the run is not changed."""
    columns, _ = judged_columns(run, warmup)
    if len(columns) < STEPS_MIN:
        return Timeline()
    meetings = find_meetings(run, columns)
    works = [measure_work(run, meetings, rows, columns) for rows in meetings.groups]
    whole = step_times(works)
    changes, drifts = find_changes(works, whole)
    parts: list[Part] = []
    if changes or drifts:
        bounds = sorted({0, len(columns), *_edges(changes, drifts)})
        for first, last in itertools.pairwise(bounds):
            parts.append(_part(run, columns, works, (first, last), judge))
        _set_drifts(parts, bounds, drifts)
        parts = _joined(run, columns, works, parts, judge)
        _compare(run, columns, works, parts)
    return Timeline(parts, find_periods(run, columns, works, whole))


def _edges(changes: list[Change], drifts: list[Drift]) -> list[int]:
    """Changes within a drift are steps of it."""
    inner = [(one.first, one.last) for one in drifts]
    kept = [one.at for one in changes if not any(a < one.at < b for a, b in inner)]
    return [*kept, *(edge for pair in inner for edge in pair)]


def _part(
    run: RunData, columns: Integers, works: list[Work], places: tuple[int, int], judge: Judge
) -> Part:
    those = columns[places[0] : places[1]]
    first, last = int(run.steps[those[0]]), int(run.steps[those[-1]]) + run.width - 1
    part = Part(first, last, float(run.step_ns[:, those].mean()), judge(run, (first, last + 1)))
    part.slow, part.slow_in = _slow_ranks(run, works, slice(*places))
    return part


def _set_drifts(parts: list[Part], bounds: list[int], drifts: list[Drift]) -> None:
    for one in drifts:
        if one.before_ns > 0:
            parts[bounds.index(one.first)].drift = one.after_ns / one.before_ns - 1


def _slow_ranks(
    run: RunData, works: list[Work], those: slice
) -> tuple[tuple[int, ...], str | None]:
    """Where most ranks are, none is slow."""
    ranks: list[int] = []
    rose: dict[str, float] = {}
    for work in works:
        if len(work.rows) < 2:
            continue
        own = work.own[:, those]
        above = np.median(over_others(own.sum(2)), axis=1)
        rows = np.flatnonzero(above >= LEAST_SHARE * work.step_ns)
        ranks += run.ranks[work.rows[rows]].tolist()
        for part, name in enumerate(work.parts if len(rows) else ()):
            more = np.median(over_others(own[..., part]), axis=1)[rows]
            rose[name] = rose.get(name, 0.0) + float(np.maximum(more, 0).sum())
    if not ranks or 2 * len(ranks) > len(run.ranks):
        return (), None
    return tuple(sorted(ranks)), _largest_stage(rose)


def _joined(
    run: RunData, columns: Integers, works: list[Work], parts: list[Part], judge: Judge
) -> list[Part]:
    """Parts of one level and one finding are one, such as those around a rank that was slow for
    some steps in a stage where nobody waits."""
    found = parts[:1]
    for one in parts[1:]:
        before = found[-1]
        if one.drift is None and before.drift is None and _alike(before, one):
            bounds = [before.first_step, one.last_step + 1]
            first, end = np.searchsorted(run.steps[columns], bounds)
            found[-1] = _part(run, columns, works, (int(first), int(end)), judge)
        else:
            found.append(one)
    return found


def _alike(one: Part, other: Part) -> bool:
    apart_ns = abs(one.step_ns - other.step_ns)
    return _key(one) == _key(other) and apart_ns <= SAME_LEVEL * one.step_ns


def _key(part: Part) -> tuple[object, ...]:
    one = part.finding
    return (part.slow, *(() if one is None else (one.kind, one.ranks, one.stage)))


def _compare(run: RunData, columns: Integers, works: list[Work], parts: list[Part]) -> None:
    """Sets what of each part is against the part before."""
    near = max(round(RESTART_NEAR * len(columns)), 1)
    steps = run.steps[columns]
    bounds = [np.searchsorted(steps, [one.first_step, one.last_step + 1]) for one in parts]
    for before, one, was, now in zip(parts, parts[1:], bounds, bounds[1:], strict=False):
        one.longer = one.step_ns / before.step_ns - 1 if before.step_ns else 0.0
        one.stage = _stage_of_change(works, slice(*was), slice(*now), np.sign(one.longer))
        if run.begins_anew is not None:
            around = columns[max(int(now[0]) - near, 0) : int(now[0]) + near]
            one.restarted = bool(run.begins_anew[:, around].any())


def _stage_of_change(works: list[Work], was: slice, now: slice, sign: float) -> str | None:
    """The stage with most of what ranks take longer than they did, in the median; sign: -1 for what
    they take less."""
    changes: dict[str, float] = {}
    for work in works:
        rose = np.median(work.own[:, now], axis=(0, 1)) - np.median(work.own[:, was], axis=(0, 1))
        for name, ns in zip(work.parts, sign * rose, strict=True):
            changes[name] = changes.get(name, 0.0) + max(float(ns), 0.0)
    return _largest_stage(changes)


def _largest_stage(times: dict[str, float]) -> str | None:
    """The stage with most of it; None where several share it, and for what no stage times."""
    name, most = max(times.items(), key=lambda one: one[1])
    return name if most > STAGE_SHARE * sum(times.values()) and name != UNTIMED else None
