"""What ranks wait for one another in the stages in which they meet, step by step.

All of them leave such a stage when the last one has come. So the rank that stays least in a step is
the one that the others wait for, and what another stays longer is its wait. Durations alone are
compared, for each rank may have another clock. The ledger splits its times by the same rule, one
meeting after another.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from .run_data import Integers, Matrix, RunData
from .sync import Meetings
from .work import place_of

NOBODY = -1


@dataclass
class GroupWaits:
    """Ranks that meet in a stage. stage: its number. rows: of the ranks. stay_ns: rank × step, NaN
    where a rank does not have the stage. Ranks that meet nobody in a step wait for nobody."""

    stage: int
    rows: Integers
    stay_ns: Matrix

    def wait_ns(self) -> Matrix:
        """Rank × step, 0 where a rank does not have the stage."""
        waits: Matrix = np.nan_to_num(self.stay_ns - self._least_ns())
        return waits

    def last(self) -> Integers:
        """Of each step the row of the rank that the others wait for, NOBODY if none meet."""
        known = np.where(np.isfinite(self.stay_ns), self.stay_ns, np.inf)
        last: Integers = np.where(self._several(), self.rows[known.argmin(0)], NOBODY)
        return last

    def late_ns(self) -> Matrix:
        """Of each step, by how much the last rank comes after the last but one; 0 if none meet."""
        known = np.where(np.isfinite(self.stay_ns), self.stay_ns, np.inf)
        first, second = np.partition(known, 1, axis=0)[:2]
        several = self._several()
        late = np.zeros(len(several))
        late[several] = second[several] - first[several]
        return late

    def shortest_ns(self) -> Matrix:
        """Of each step, what the meeting takes the last rank; 0 where no rank has it."""
        least: Matrix = np.nan_to_num(self._least_ns(), nan=0.0)
        return least

    def _several(self) -> Integers:
        several: Integers = np.isfinite(self.stay_ns).sum(0) > 1
        return several

    def _least_ns(self) -> Matrix:
        known = np.where(np.isfinite(self.stay_ns), self.stay_ns, np.inf).min(0)
        return np.where(np.isfinite(known), known, np.nan)


def group_waits(run: RunData, stages: Sequence[str]) -> Iterator[GroupWaits]:
    """Of each of these stages and each group of ranks that meet in it. A rank is in one group of a
    stage: the largest that the run recorded; without any, those of one pipeline stage meet."""
    for stage, name in enumerate(run.stages):
        if name not in stages:
            continue
        for rows in _groups(run, name):
            stay = np.where(np.isfinite(run.begins[rows][..., stage]),
                            run.totals[rows][..., stage], np.nan)  # fmt: skip
            yield GroupWaits(stage, rows, stay)


def waits_by_stage(run: RunData, stages: Sequence[str]) -> dict[str, Matrix]:
    """Of each of these stages rank × step, what each rank waits in it, ns."""
    found: dict[str, Matrix] = {}
    for group in group_waits(run, stages):
        waited = found.setdefault(run.stages[group.stage], np.zeros(run.step_ns.shape))
        waited[group.rows] += group.wait_ns()
    return found


def _groups(run: RunData, stage: str) -> list[Integers]:
    everyone = np.arange(len(run.ranks))
    peers = np.zeros(len(run.ranks), np.int64) if run.peers is None else run.peers
    alike = [np.flatnonzero(peers == peer) for peer in np.unique(peers)]
    points = [point for point in run.sync_points or () if point.stage == stage]
    if not points or any(point.kind == "pipeline" for point in points):
        return [rows for rows in alike if len(rows) > 1]
    groups = []
    free = np.ones(len(run.ranks), bool)
    for point in sorted(points, key=lambda one: -(len(one.members) or len(everyone))):
        members = np.isin(run.ranks, point.members) if point.members else free.copy()
        rows = np.flatnonzero(members & free)
        free[rows] = False
        if len(rows) > 1:
            groups.append(rows)
    return groups


def meeting_stages(run: RunData, meetings: Meetings) -> list[str]:
    """The stages in which ranks meet, in the order of a step."""
    meets: list[int] = np.flatnonzero(meetings.meets.any(0)).tolist()
    return [run.stages[at] for at in sorted(meets, key=places_in_step(run).__getitem__)]


def places_in_step(run: RunData) -> list[float]:
    """Of each stage how long after the begin of a step it usually begins, ns; infinity where no
    rank has it."""
    rows = np.arange(len(run.ranks))
    places = (place_of(run, rows, stage) for stage in range(len(run.stages)))
    return [place if np.isfinite(place) else math.inf for place in places]
