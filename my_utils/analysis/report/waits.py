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

    last: the row of the rank that came last, NOBODY if none met. late_ns: how much later than the
    last but one. cost_ns: the waits of all together. lost_stage, lost_ns: the stage in which that
    rank took longer than the median of the others by most, and how much; NOBODY if in none.
    """

    stage: int
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


def waits_of(run: RunData, meetings: Meetings, warmup: int) -> RunWaits:
    stages = meeting_stages(run, meetings)
    groups = list(group_waits(run, stages))
    waited = np.zeros(run.step_ns.shape)
    for group in groups:
        waited[group.rows] += group.wait_ns()
    found = RunWaits(stages, [_meeting(group) for group in groups], waited, {})
    _follow(run, meetings, groups, found, warmup)
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
        group.stage, group.last(), group.late_ns(), group.wait_ns().sum(0),
        np.full(steps, NOBODY), np.zeros(steps),
    )  # fmt: skip


def _follow(
    run: RunData, meetings: Meetings, groups: Sequence[GroupWaits], found: RunWaits, warmup: int
) -> None:
    """Adds the lost stages and the critical path."""
    ends = [run.stages.index(name) for name in found.stages]
    places = places_in_step(run)
    paths = {stage: _last_ranks(run, found.meetings, stage) for stage in ends}
    for group in groups:
        name = run.stages[group.stage]
        shortest = float(group.shortest_ns()[warmup:].sum())
        found.critical_ns[name] = max(found.critical_ns.get(name, 0.0), shortest)
    slowest = int(np.nan_to_num(run.step_ns).sum(1).argmax())
    for stage in working_stages(run, meetings):
        own = taken_ns(run, stage)
        end = next((one for one in ends if places[one] > places[stage]), None)
        is_tail = end is None
        end = ends[0] if is_tail and ends else end
        row = np.full(len(run.steps), slowest) if end is None else paths[end]
        row = np.append(row[1:], row[-1:]) if is_tail else row
        critical = np.nan_to_num(own[row, np.arange(len(row))])
        found.critical_ns[run.stages[stage]] = float(critical[warmup:].sum())
        excess = np.nan_to_num(over_peers(own, meetings))
        for one in found.meetings:
            if one.stage == end:
                _find_loss(one, stage, excess, is_tail=is_tail)


def _last_ranks(run: RunData, meetings: Sequence[Meeting], stage: int) -> Integers:
    """Of each step the row of the rank that most waited for in the next meeting in a stage."""
    several = [one for one in meetings if one.stage == stage]
    costs = np.stack([np.where(one.last == NOBODY, -1.0, one.cost_ns) for one in several])
    last = np.stack([one.last for one in several])[costs.argmax(0), np.arange(costs.shape[1])]
    known = np.flatnonzero(last != NOBODY)
    if not len(known):
        return np.zeros(len(run.steps), np.int64)
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
        own = np.add.reduceat(own, np.append(0, there[:-1] + 1), axis=1)
    lost = np.zeros(len(one.last))
    lost[there] = own[one.last[there], np.arange(len(there))]
    more = lost > one.lost_ns
    one.lost_ns[more] = lost[more]
    one.lost_stage[more] = stage
