"""Whom the ranks waited for in each step, and in which stage that rank lost the time.

The stages in which ranks meet cut a step into segments. What a rank does in a segment decides when
it comes to the meeting at its end; what it does after the last meeting of a step, when it comes to
the first one of the next. The ranks that the others waited for, one after another, are the critical
path of the run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..verdict.run_data import Integers, Matrix, RunData
from ..verdict.slow_ranks import over_peers, taken_ns, working_stages
from ..verdict.sync import Meetings
from ..verdict.waits import NOBODY, GroupWaits, group_waits, meeting_stages, places_in_step


@dataclass
class Meeting:
    """A group of ranks in a stage in which they meet. Arrays by step.

    rows: of the ranks. last: the row of the rank that came last, NOBODY if none met. late_ns: how
    much later than the last but one. cost_ns: the waits of all together. lost_stage, lost_ns: the
    stage in which that rank took longer than the median of the others by most, and how much; NOBODY
    if in none.
    """

    stage: int
    rows: Integers
    last: Integers
    late_ns: Matrix
    cost_ns: Matrix
    lost_stage: Integers
    lost_ns: Matrix


@dataclass
class RunWaits:
    """stages: in which ranks meet, in the order of a step. waited_ns: rank × step. critical_ns: of
    each stage what it took on the critical path, without the warm-up."""

    stages: list[str]
    meetings: list[Meeting]
    waited_ns: Matrix
    critical_ns: dict[str, float]


def measure_waits(run: RunData, meetings: Meetings, warmup: int) -> RunWaits:
    """warmup: so many steps at the beginning are not on the critical path."""
    groups = list(group_waits(run, meeting_stages(run, meetings)))
    there = {run.stages[group.stage] for group in groups}
    stages = [name for name in meeting_stages(run, meetings) if name in there]
    waited = np.zeros(run.step_ns.shape)
    for group in groups:
        waited[group.rows] += group.wait_ns()
    found = RunWaits(stages, [_meeting(group) for group in groups], waited, {})
    for group in groups:
        name = run.stages[group.stage]
        shortest = float(group.shortest_ns()[warmup:].sum())
        found.critical_ns[name] = max(found.critical_ns.get(name, 0.0), shortest)
    _follow(run, meetings, found, warmup)
    return found


def busy_ns(run: RunData, meetings: Meetings) -> Matrix:
    """Rank × step: the step without the stages in which ranks meet, and those inside them."""
    working = working_stages(run, meetings)
    waiting = [stage for stage in range(len(run.stages)) if stage not in working]
    busy: Matrix = run.step_ns - run.totals[..., waiting].sum(2)
    return busy


def _meeting(group: GroupWaits) -> Meeting:
    steps = group.stay_ns.shape[1]
    return Meeting(
        group.stage, group.rows, group.last(), group.late_ns(), group.wait_ns().sum(0),
        np.full(steps, NOBODY), np.zeros(steps),
    )  # fmt: skip


def _follow(run: RunData, meetings: Meetings, found: RunWaits, warmup: int) -> None:
    """Adds the lost stages, and the critical path of those in which ranks work."""
    segments = _Segments(run, found)
    columns = np.arange(len(run.steps))
    for stage in working_stages(run, meetings):
        own = taken_ns(run, stage)
        critical = np.nan_to_num(own[segments.critical_rows(stage), columns])
        found.critical_ns[run.stages[stage]] = float(critical[warmup:].sum())
        end, is_tail = segments.end_of(stage)
        excess = np.nan_to_num(over_peers(own, meetings))
        for one in found.meetings:
            if one.stage == end:
                _find_loss(one, stage, excess, is_tail=is_tail)


class _Segments:
    """At which meeting the segment of a stage ends."""

    def __init__(self, run: RunData, found: RunWaits) -> None:
        self._places = places_in_step(run)
        self._ends = [run.stages.index(name) for name in found.stages]
        self._rows = {end: _last_rows(found.meetings, end) for end in self._ends}
        slowest = int(np.nan_to_num(run.step_ns).sum(1).argmax())
        self._without = np.full(len(run.steps), slowest)

    def end_of(self, stage: int) -> tuple[int | None, bool]:
        """The number of the stage in which ranks meet, None where they do not; and whether it is
        one of the next step."""
        for end in self._ends:
            if self._places[end] > self._places[stage]:
                return end, False
        return (self._ends[0], True) if self._ends else (None, False)

    def critical_rows(self, stage: int) -> Integers:
        """Of each step the rank on whose work the others waited; where ranks do not meet, the
        slowest of the run."""
        end, is_tail = self.end_of(stage)
        rows = self._without if end is None else self._rows[end]
        return np.append(rows[1:], rows[-1:]) if is_tail else rows


def _last_rows(meetings: Sequence[Meeting], stage: int) -> Integers:
    """Of each step the row of the rank that most waited for in the next meeting in a stage."""
    several = [one for one in meetings if one.stage == stage]
    costs = np.stack([np.where(one.last == NOBODY, -1.0, one.cost_ns) for one in several])
    last = np.stack([one.last for one in several])[costs.argmax(0), np.arange(costs.shape[1])]
    known = np.flatnonzero(last != NOBODY)
    if not len(known):
        return np.zeros(len(last), np.int64)
    following = np.minimum(np.searchsorted(known, np.arange(len(last))), len(known) - 1)
    rows: Integers = last[known[following]]
    return rows


def _find_loss(one: Meeting, stage: int, excess: Matrix, *, is_tail: bool) -> None:
    """excess: rank × step, of the stage. is_tail: it comes after the last meeting of a step, and
    delays the next one. Where not each step has a meeting, what was lost since the last one counts.
    """
    own = np.hstack([np.zeros((len(excess), 1)), excess[:, :-1]]) if is_tail else excess
    there = np.flatnonzero(one.last != NOBODY)
    if not len(there):
        return
    if len(there) < own.shape[1]:
        own = np.add.reduceat(own[:, : there[-1] + 1], np.append(0, there[:-1] + 1), axis=1)
    lost = np.zeros(len(one.last))
    lost[there] = own[one.last[there], np.arange(len(there))]
    more = lost > one.lost_ns
    one.lost_ns[more] = lost[more]
    one.lost_stage[more] = stage
