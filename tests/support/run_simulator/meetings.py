"""When each stage of each rank begins and ends, given its own work and where ranks meet.

`alone`: nobody meets. `ddp`: backward ends together, once the last rank has its gradients.
`ddp_buffers`: forward too begins after rank 0 has sent its buffers. `fsdp`: forward and backward
gather each part of the model together. `pipeline`: four stages pass micro-batches on by sends and
receives, then the replicas of a stage reduce their gradients; both in `collective`. `two_groups`:
two halves under DDP, which never meet each other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from my_utils.analysis.verdict.run_data import SyncPoint

from .work import STAGES, column

Matrix = npt.NDArray[np.float64]
Topology = Literal["alone", "ddp", "ddp_buffers", "fsdp", "pipeline", "two_groups"]

PIPELINE_STAGES = 4
MICRO_BATCHES = 48  # so that filling and draining the pipeline takes 6 % of a step
FSDP_PARTS = 3  # of the model, each gathered on its own
REDUCE_SHARE = 0.02  # of backward: what the all-reduce takes after the last gradient
LEAVING_NS = 20_000  # ranks leave a meeting so far apart, on average


@dataclass
class Timeline:
    """Arrays ranks × steps × stages, ns; `begins` and `ends` are NaN where a stage did not run."""

    begins: Matrix
    ends: Matrix
    totals: Matrix


def groups(topology: Topology, ranks: int) -> list[npt.NDArray[np.int64]]:
    """The ranks that reduce gradients together."""
    everyone = np.arange(ranks)
    if topology == "two_groups":
        return np.array_split(everyone, 2)
    if topology == "pipeline":
        return list(everyone.reshape(PIPELINE_STAGES, -1))
    return [everyone]


def peers(topology: Topology, ranks: int) -> npt.NDArray[np.int64] | None:
    """The pipeline stage of each rank."""
    if topology != "pipeline":
        return None
    return np.repeat(np.arange(PIPELINE_STAGES), ranks // PIPELINE_STAGES)


def sync_points(topology: Topology, ranks: int) -> list[SyncPoint]:
    """What a run records about its meetings."""
    members = [tuple(group.tolist()) for group in groups(topology, ranks)]
    if topology == "ddp" or topology == "two_groups":
        return [SyncPoint("backward", group, "ddp") for group in members]
    if topology == "ddp_buffers":
        return [SyncPoint(stage, members[0], "ddp") for stage in ("forward", "backward")]
    if topology == "fsdp":
        return [SyncPoint(stage, members[0], "fsdp") for stage in ("forward", "backward")]
    if topology == "pipeline":
        lanes = np.arange(ranks).reshape(PIPELINE_STAGES, -1).T.tolist()
        return [
            *(SyncPoint("collective", tuple(lane), "pipeline") for lane in lanes),
            *(SyncPoint("collective", group, "collective") for group in members),
        ]
    return []


def meeting_stages(topology: Topology) -> set[str]:
    return {point.stage for point in sync_points(topology, 8)}


def seen_of(stage: str, topology: Topology) -> float:
    """The part of a stage's own work by which a rank comes late to a meeting.

    The rest lies inside a meeting: it is as long on the ranks that wait as on the one that works.
    """
    if stage == "backward" and topology in ("ddp", "ddp_buffers", "fsdp", "two_groups"):
        return 0.0
    return 1 / FSDP_PARTS if stage == "forward" and topology == "fsdp" else 1.0


class _Together:
    """All topologies but a pipeline: ranks of a group leave backward together, so a step depends on
    the one before it only by what each rank does after that. Times are ranks × steps, since the
    group's last meeting; all steps are worked out at once."""

    def __init__(self, work: Matrix, topology: Topology, random: np.random.Generator) -> None:
        self.work, self.topology, self.random = work, topology, random
        self.groups = groups(topology, len(work))
        shape = work.shape
        self.out = Timeline(np.full(shape, np.nan), np.full(shape, np.nan), np.zeros(shape))

    def run(self) -> Timeline:
        """Stages before the meeting and after it, then when each meeting was."""
        meets = column("backward") + 1
        leaving = self.random.exponential(LEAVING_NS, self.work.shape[:2])
        after, met = leaving, np.zeros_like(leaving)
        later = []
        for at in range(meets, len(STAGES) - 1):
            later.append((at, after, after + self.work[:, :, at]))
            after = after + self.work[:, :, at]
        after = after + self.work[:, :, -1]
        now = np.concatenate([np.zeros_like(after[:, :1]), after[:, :-1]], axis=1)
        for at in range(meets):
            ends, waits = self.stage(now, at)
            self.keep(at, now, ends, waits)
            now = ends
        for group in self.groups:
            met[group] = now[group].max(axis=0)
        ready_ns = met + REDUCE_SHARE * np.median(self.work[:, :, meets - 1], axis=0)
        self.keep(meets - 1, self.out.begins[:, :, meets - 1], ready_ns + leaving, True)
        began = np.cumsum(ready_ns, axis=1) - ready_ns  # the meeting before each step
        for at in range(meets):
            self.shift(at, began)
        for at, begins, ends in later:
            self.keep(at, begins, ends, False)
            self.shift(at, began + ready_ns)
        return self.out

    def keep(self, at: int, begins: Matrix, ends: Matrix, always: bool) -> None:
        """A stage without work did not run, unless ranks meet in it."""
        ran = self.work[:, :, at] > 0 if not always else np.ones(begins.shape, bool)
        self.out.begins[:, :, at] = np.where(ran, begins, np.nan)
        self.out.ends[:, :, at] = np.where(ran, ends, np.nan)
        self.out.totals[:, :, at] = np.where(ran, ends - begins, 0)

    def shift(self, at: int, by: Matrix) -> None:
        self.out.begins[:, :, at] += by
        self.out.ends[:, :, at] += by

    def stage(self, now: Matrix, at: int) -> tuple[Matrix, bool]:
        """When it ends, and whether ranks meet in it."""
        work, name = self.work[:, :, at], STAGES[at]
        if self.topology == "fsdp" and name in ("forward", "backward"):
            for _ in range(FSDP_PARTS):
                now = now.max(axis=0) + work / FSDP_PARTS
            return now, True
        if self.topology == "ddp_buffers" and name == "forward":
            return np.maximum(now, now[0]) + work, True
        return now + work, False


def _alone(work: Matrix) -> Timeline:
    ends = np.cumsum(work.reshape(len(work), -1), axis=1).reshape(work.shape)
    begins = ends - work
    ran = work > 0
    return Timeline(np.where(ran, begins, np.nan), np.where(ran, ends, np.nan), work * ran)


class _Pipeline:
    """Micro-batches go through all stages and back; then replicas of a stage reduce gradients."""

    def __init__(self, work: Matrix, random: np.random.Generator) -> None:
        self.work, self.random = work, random
        self.work[:, :, column("loss")] = 0  # the last stage works on it within forward
        self.now = np.zeros(len(work))
        shape = work.shape
        self.out = Timeline(np.full(shape, np.nan), np.full(shape, np.nan), np.zeros(shape))

    def run(self) -> Timeline:
        for step in range(self.work.shape[1]):
            self.plain(step, column("input"))
            self.meet(step)
            for name in ("optimizer", "eval", "checkpoint"):
                self.plain(step, column(name))
            self.now = self.now + self.work[:, step, -1]
        return self.out

    def plain(self, step: int, at: int) -> None:
        end = self.now + self.work[:, step, at]
        ran = self.work[:, step, at] > 0
        self.out.begins[ran, step, at], self.out.ends[ran, step, at] = self.now[ran], end[ran]
        self.out.totals[:, step, at] = end - self.now
        self.now = end

    def meet(self, step: int) -> None:
        out, at = self.out, column("collective")
        out.begins[:, step, at] = self.now
        out.totals[:, step, at] -= self.now
        for name, order in (("forward", range(4)), ("backward", range(3, -1, -1))):
            stage = column(name)
            work = self.work[:, step, stage]
            first, last = _passed_on(self.now, work, order)
            out.begins[:, step, stage], out.ends[:, step, stage] = first, last
            out.totals[:, step, stage] = work
            self.now = last
        met = self.now.reshape(PIPELINE_STAGES, -1).max(axis=1)
        met += REDUCE_SHARE * np.median(self.work[:, step, column("backward")])
        end = np.repeat(met, len(self.now) // PIPELINE_STAGES)
        end += self.random.exponential(LEAVING_NS, len(end))
        out.ends[:, step, at] = end
        computed = self.work[:, step, column("forward")] + self.work[:, step, column("backward")]
        out.totals[:, step, at] += end - computed
        self.now = end


def _passed_on(free: Matrix, work: Matrix, order: Sequence[int]) -> tuple[Matrix, Matrix]:
    """When each rank began the first micro-batch and ended the last one; they come in `order`.

    A rank that takes w for each ends the m-th one w * (m + 1) after the latest of: when it was
    free, and when the j-th one arrived less w * j, for each j up to m.
    """
    free, piece = (
        values.reshape(PIPELINE_STAGES, 1, -1) for values in (free, work / MICRO_BATCHES)
    )
    number = np.arange(MICRO_BATCHES)[:, None]
    first, last = np.empty_like(free), np.empty_like(free)
    arrived = np.full((MICRO_BATCHES, free.shape[2]), -np.inf)
    for stage in order:
        latest = np.maximum.accumulate(arrived - piece[stage] * number, axis=0)
        begun = np.maximum(latest, free[stage]) + piece[stage] * number
        arrived = begun + piece[stage]
        first[stage], last[stage] = begun[0], arrived[-1]
    return first.ravel(), last.ravel()


def timeline(work: Matrix, topology: Topology, random: np.random.Generator) -> Timeline:
    """`work`: ranks × steps × stages, ns."""
    if topology == "alone":
        return _alone(work)
    if topology == "pipeline":
        return _Pipeline(work.copy(), random).run()
    return _Together(work, topology, random).run()


def step_times(line: Timeline) -> tuple[Matrix, Matrix]:
    """When each step began on each rank, and how long it took to the begin of the next one."""
    begins: Matrix = np.nanmin(line.begins, axis=2)
    last = np.nanmax(line.ends[:, -1], axis=1)
    return begins, np.diff(begins, axis=1, append=last[:, None])
