"""Profile CSVs of whole runs whose truth is known: what each rank took, and who waited for whom.

The stages of a step stand in an `iter`. All ranks enter `all_reduce`, leave it 1 ms after the last
one came, each within microseconds, and go on with the last stage.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from .run_csv import HEADER, START_NS

SYNC = "all_reduce"


@dataclass
class Run:
    """A run to be written. took_ns: ranks × steps × stages; entries_ns, exits_ns: ranks × steps, of
    the synchronising stage, known once it is written."""

    ranks: int = 8
    steps: int = 120
    stages: Sequence[str] = ("data", "forward", "backward", "optimizer")
    means_ms: Sequence[float] = (5, 20, 30, 3)
    noise: float = 0.01
    synchronises: bool = True
    ranks_a_host: int = 8
    clock_ns: float = 0.0  # the clocks' standard deviation
    told_late_ns: float = 0.0  # how late ends from the synchronising stage on are written down
    first_step: int = 0
    attempt: int = 1
    start_ns: int = START_NS
    seed: int = 0
    label: Callable[[int], str] = lambda rank: ""
    took_ns: npt.NDArray[np.int64] = field(init=False)
    entries_ns: npt.NDArray[np.int64] = field(init=False)
    exits_ns: npt.NDArray[np.int64] = field(init=False)

    def __post_init__(self) -> None:
        self.random = np.random.default_rng(self.seed)
        shape = (self.ranks, self.steps, len(self.stages))
        factors = 1 + self.noise * self.random.standard_normal(shape)
        self.took_ns = (np.array(self.means_ms) * 1e6 * factors).astype(np.int64)

    def slower(self, factor: float, stage: str, **where: Any) -> Run:
        """Multiplies what a stage takes; `rank` and `steps` say where, all by default."""
        rank, steps = where.get("rank", slice(None)), where.get("steps", slice(None))
        at = (rank, steps, self.stages.index(stage))
        self.took_ns[at] = (self.took_ns[at] * factor).astype(np.int64)
        return self

    def write(self, folder: Path) -> Path:
        """Adds `profile_rank_<r>.csv` of every rank, after what stands there."""
        folder.mkdir(exist_ok=True)
        clocks = (self.clock_ns * self.random.standard_normal(self.ranks)).astype(np.int64)
        self.entries_ns = np.zeros((self.ranks, self.steps), np.int64)
        self.exits_ns = np.zeros((self.ranks, self.steps), np.int64)
        files = [_File(self, rank, int(clocks[rank])) for rank in range(self.ranks)]
        now = np.full(self.ranks, self.start_ns)
        for step in range(self.steps):
            now = self._step(files, step, now)
        for rank, file in enumerate(files):
            with (folder / f"profile_rank_{rank}.csv").open("a", encoding="utf-8") as out:
                if out.tell() == 0:
                    out.write(HEADER)
                out.write("".join(file.rows))
        return folder

    def _step(
        self, files: list[_File], step: int, now: npt.NDArray[np.int64]
    ) -> npt.NDArray[np.int64]:
        ends = now[:, None] + np.cumsum(self.took_ns[:, step, :-1], axis=1)
        entries, exits = ends[:, -1], ends[:, -1]
        if self.synchronises:
            jitter = np.abs(5_000 * self.random.standard_normal(self.ranks)).astype(np.int64)
            exits = entries.max() + 1_000_000 + jitter
        self.entries_ns[:, step], self.exits_ns[:, step] = entries, exits
        after = exits + self.took_ns[:, step, -1]
        for rank, file in enumerate(files):
            number, begin = self.first_step + step, int(now[rank])
            late = int(self.told_late_ns * self.random.random()) if self.told_late_ns else 0
            outer = file.start(begin, number, "iter", 0)
            for name, end in zip(self.stages[:-1], ends[rank].tolist(), strict=True):
                file.stage(begin, end, number, name, outer)
                begin = end
            if self.synchronises:
                file.stage(begin, int(exits[rank]) + late, number, SYNC, outer)
            file.stage(int(exits[rank]), int(after[rank]) + late, number, self.stages[-1], outer)
            file.end(int(now[rank]), int(after[rank]) + late, number, "iter", outer, 0)
        return after


class _File:
    """The rows of a rank."""

    def __init__(self, run: Run, rank: int, clock_ns: int) -> None:
        self.clock_ns = clock_ns
        self.node = run.attempt << 32
        label = run.label(rank).replace("=", "%3D").replace(",", "%2C")
        host = f"node{rank // run.ranks_a_host}"
        self.rows = [
            self._row(run.start_ns, run.first_step, "my_utils.process", "INSTANT", "",
                      f"pid=1,rank={rank},world_size={run.ranks},attempt={run.attempt},"
                      f"host={host},label={label}")
        ]  # fmt: skip

    def _row(
        self, time_ns: int, step: int, name: str, kind: str, duration: str, metadata: str
    ) -> str:
        time_ns += self.clock_ns
        time = f"{time_ns // 10**9}.{time_ns % 10**9:09d}"
        return f'{time},-,node,{step},{name},{kind},{duration},"{metadata}"\n'

    def start(self, begin: int, step: int, name: str, parent: int) -> int:
        self.node += 1
        ids = f"node_id={self.node},parent_id={parent},tid=1,tag=train"
        self.rows.append(self._row(begin, step, name, "START", "", ids))
        return self.node

    def end(self, begin: int, end: int, step: int, name: str, node: int, parent: int) -> None:
        ids = f"node_id={node},parent_id={parent},tid=1,tag=train"
        duration = f"{(end - begin) // 10**6}.{(end - begin) % 10**6:06d}"
        self.rows.append(self._row(end, step, name, "END", duration, ids))

    def stage(self, begin: int, end: int, step: int, name: str, parent: int) -> None:
        self.end(begin, end, step, name, self.start(begin, step, name, parent), parent)
