"""Runs as arrays whose truth is known, worked out by hand: own work in, waits out.

Each rank does the stages of a step one after another. In a meeting all ranks of a group leave it
when the last one has come and done its part.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from my_utils.analysis.why import RunData, SyncPoint

__all__ = ["DDP", "ArrayRun"]

DDP = SyncPoint("backward", (), "ddp")
MEANS_MS = {"input": 2.0, "forward": 25.0, "backward": 60.0, "optimizer": 6.0}


@dataclass
class ArrayRun:
    """took_ns: ranks × steps × stages and, last, what no stage times; own work, to be changed by a
    test. meets: stages in which all ranks wait for the last one."""

    ranks: int = 4
    steps: int = 120
    means_ms: Mapping[str, float] = field(default_factory=lambda: dict(MEANS_MS))
    untimed_ms: float = 1.0
    noise: float = 0.02
    meets: Sequence[str] = ("backward",)
    groups: Sequence[Sequence[int]] = ()
    hosts: Sequence[str] = ()
    seed: int = 0
    clock_ns: float = 0.0
    took_ns: npt.NDArray[np.float64] = field(init=False)

    def __post_init__(self) -> None:
        self.random = np.random.default_rng(self.seed)
        self.stages = list(self.means_ms)
        means = np.array([*self.means_ms.values(), self.untimed_ms]) * 1e6
        shape = (self.ranks, self.steps, len(means))
        noise = np.exp(self.noise * self.random.standard_normal(shape))
        self.took_ns = means * noise
        if not self.groups:
            self.groups = [range(self.ranks)]

    def at(self, stage: str) -> int:
        return len(self.stages) if stage == "untimed" else self.stages.index(stage)

    def more(self, stage: str, ms: float, **where: Any) -> ArrayRun:
        """Adds to what a stage takes; `rank` and `steps` say where, all by default."""
        rank, steps = where.get("rank", slice(None)), where.get("steps", slice(None))
        self.took_ns[rank, steps, self.at(stage)] += ms * 1e6
        return self

    def data(self, **changes: Any) -> RunData:
        shape = (self.ranks, self.steps, len(self.stages))
        begins, ends = np.zeros(shape), np.zeros(shape)
        step_begins = np.zeros(shape[:2])
        now = np.zeros(self.ranks)
        for step in range(self.steps):
            step_begins[:, step] = now
            for number, stage in enumerate(self.stages):
                begins[:, step, number] = now
                now = now + self.took_ns[:, step, number]
                if stage in self.meets:
                    now = self._met(now)
                ends[:, step, number] = now
            now = now + self.took_ns[:, step, -1]
        clocks = self.clock_ns * self.random.standard_normal(self.ranks)
        step_ns = np.diff(step_begins, axis=1, append=ends[:, -1:, -1])
        points = [
            SyncPoint(stage, () if len(self.groups) == 1 else tuple(group), "ddp")
            for stage in self.meets
            for group in self.groups
        ]
        values: dict[str, Any] = {
            "ranks": np.arange(self.ranks),
            "hosts": list(self.hosts) or ["a"] * self.ranks,
            "world_size": self.ranks,
            "steps": np.arange(self.steps),
            "stages": self.stages,
            "begins": begins + clocks[:, None, None],
            "ends": ends + clocks[:, None, None],
            "totals": ends - begins,
            "step_begins": step_begins + clocks[:, None],
            "step_ns": step_ns,
            "sync_points": points if self.ranks > 1 else [],
            "ended": [True] * self.ranks,
        }
        return RunData(**{**values, **changes})

    def _met(self, now: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        left = now.copy()
        for group in self.groups:
            rows = list(group)
            jitter = 2_000 * np.abs(self.random.standard_normal(len(rows)))
            left[rows] = now[rows].max() + jitter
        return left

    def without_waits_ns(self) -> float:
        """What a step takes if all ranks wait for the slowest in each; the mean."""
        return float(self.took_ns.sum(2).max(0).mean())
