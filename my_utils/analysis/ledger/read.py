"""Makes the ledger of a run while its verdict reads the files, so that they are read once."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

import numpy as np

from ...core.run_files.state import WORLD_SIZE_MAX
from ..verdict.endings import hangs_after_s
from ..verdict.rank_files import RankStages
from ..verdict.rules import judged_columns
from ..verdict.run_data import RunData
from ..verdict.sync import find_meetings
from .ledger import Job, Ledger, make_ledger
from .rank_times import RankTimes, numbered_alike, times_of_rank
from .recent import Recent, make_recent


class LedgerReader:
    """Takes the ranks of one run. `add` may be called by several threads at once."""

    def __init__(self) -> None:
        self._ranks: list[RankTimes] = []
        self._run: RunData | None = None

    def add(self, rank: RankStages) -> None:
        """All rows of a rank."""
        times = times_of_rank(rank)
        if times is not None:
            self._ranks.append(times)

    def choose(self, run: RunData) -> None:
        """Which of the ranks are of the run, and how their processes are."""
        self._run = run

    def ledger(
        self, hung_s: float | None = None, ranks: Collection[int] | None = None
    ) -> Ledger | None:
        """None where the run, or its rows, could not be read. hung_s: without progress before its
        end, from which on a process hung; by default the longer of 30 and five mean steps. ranks:
        whose rows it has; all by default."""
        if self._run is None or not self._ranks:
            return None
        there = {*self._run.ranks.tolist(), *self._run.gone}
        gone = self._run.gone
        kept = numbered_alike([one for one in self._ranks if one.rank in there], gone)
        size = min(self._run.world_size, WORLD_SIZE_MAX)
        run_file = self._run.run_file
        job = Job(
            _ns(run_file.get("started")), _ns(run_file.get("ended")), _missing(size, there),
            gone, self._run.processes, list(_inferred(self._run)),
        )  # fmt: skip
        return make_ledger(
            kept, job, _hangs_after_s(self._run) if hung_s is None else hung_s, ranks
        )

    def recent(self, seconds: float) -> Recent | None:
        """Of the newest steps that were read, up to so many seconds; None where there are none."""
        if self._run is None:
            return None
        there = set(self._run.ranks.tolist())
        kept = numbered_alike([one for one in self._ranks if one.rank in there])
        return make_recent(kept, seconds, list(_inferred(self._run)))


def _hangs_after_s(run: RunData) -> float:
    """By the mean of the steps that the verdict judges."""
    columns, _ = judged_columns(run, None)
    judged_ns = run.step_ns[:, columns] if len(columns) else np.zeros(1)
    return hangs_after_s(float(judged_ns.mean()) * 1e-9)


def _inferred(run: RunData) -> Iterator[tuple[str, frozenset[int]]]:
    """Where ranks meet by the times alone."""
    if run.sync_points is not None or not run.step_ns.size:
        return
    columns = np.flatnonzero(np.isfinite(run.step_ns).all(0))
    found = find_meetings(run, columns)
    for stage in found.inferred:
        place = run.stages.index(stage)
        for group in found.groups:
            if found.meets[group, place].any():
                yield stage, frozenset(run.ranks[group].tolist())


def _missing(size: int, there: Collection[int]) -> list[int]:
    return [rank for rank in range(size) if rank not in there] if size > len(there) else []


def _ns(seconds: Any) -> int | None:
    """Of a moment in run.json, which may be damaged."""
    is_moment = isinstance(seconds, (int, float)) and 0 < seconds < 2**33
    return round(seconds * 1e9) if is_moment else None
