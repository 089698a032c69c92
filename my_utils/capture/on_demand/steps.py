"""Finds a step at which a window can begin on all ranks at once, from outside the job."""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from ...run_files.ranks import find_ranks
from ...run_files.state import Rank

# Time until all ranks know a request: they poll the file twice a second, and a network file system
# adds its delay.
LEAD_LOCAL_S = 1.5
LEAD_REMOTE_S = 6.0
# Between two polls of the ranks' speed. Heartbeats of other machines come every two seconds.
SAMPLE_LOCAL_S = 0.7
SAMPLE_REMOTE_S = 2.5


@dataclass
class Survey:
    """The ranks of a log directory, one process each."""

    ranks: dict[int, Rank]
    asked: list[int]  # sorted

    @property
    def alive(self) -> list[int]:
        """Of those that were asked."""
        return [n for n in self.asked if n in self.ranks and self.ranks[n].alive]

    def why_not(self, rank: int) -> str:
        """Why a rank that is not alive cannot answer."""
        found = self.ranks.get(rank)
        if found is None:
            known = ", ".join(map(str, sorted(self.ranks))) or "none"
            return f"no such rank has files in the log directory (there: {known})"
        if found.state == "closed":
            return "its process has ended"
        return f"its process {found.pid} on {found.host} is gone"


def survey(log_dir: str, ranks: Collection[int] | None = None) -> Survey:
    """Who is there. OSError when the directory cannot be read."""
    found = {item.rank: item for item in find_ranks(log_dir).ranks if item.worker == 0}
    asked = sorted(found if ranks is None else set(ranks))
    return Survey(found, asked)


def step_ahead(log_dir: str, ranks: Sequence[int], lead_s: float | None = None) -> int | None:
    """A step that none of the living ranks among these will have begun `lead_s` seconds from now.

    None when no rank has begun a step yet. Takes about a second, or three where ranks are on other
    machines.
    """
    before = _steps(survey(log_dir, ranks))
    remote = any(rank.source != "journal" for rank, _ in before.values())
    time.sleep(SAMPLE_REMOTE_S if remote else SAMPLE_LOCAL_S)
    after = _steps(survey(log_dir, ranks))
    if not after:
        return None
    speed = max((_speed(before[n], after[n]) for n in after if n in before), default=0.0)
    # What a heartbeat says may be two seconds old.
    furthest = max(step + speed * _age(rank) for rank, (step, _) in after.values())
    lead = (LEAD_REMOTE_S if remote else LEAD_LOCAL_S) if lead_s is None else lead_s
    return math.floor(furthest) + max(2, math.ceil(speed * lead) + 1)


_Known = tuple[Rank, tuple[int, float]]  # the step, and when it was known


def _steps(found: Survey) -> dict[int, _Known]:
    now = time.time()
    known: dict[int, _Known] = {}
    for number in found.alive:
        rank = found.ranks[number]
        if rank.step is not None:
            known[number] = (rank, (rank.step, now - _age(rank)))
    return known


def _age(rank: Rank) -> float:
    return 0.0 if rank.source == "journal" else rank.beat_age_s or 0.0


def _speed(before: _Known, after: _Known) -> float:
    """Steps a second."""
    steps, seconds = after[1][0] - before[1][0], after[1][1] - before[1][1]
    return max(0.0, steps / seconds) if seconds > 0.05 else 0.0
