"""Finds a step at which a window can begin on all ranks at once, from outside the job."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ....core.run_files.ranks import find_ranks
from ....core.run_files.state import Rank

# Time until all ranks know a request: they poll the file twice a second, and a network file system
# adds its delay.
LEAD_LOCAL_S = 1.5
LEAD_REMOTE_S = 6.0
# Between two polls of the ranks' speed, at first. Heartbeats of other machines come every two
# seconds.
SAMPLE_LOCAL_S = 0.7
SAMPLE_REMOTE_S = 2.5
APART_S = 0.3  # between two sights of a rank; the age of a heartbeat is known less well
MOVES_ENOUGH = 4  # steps that a rank has moved on, after which its speed is known


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


def step_ahead(
    log_dir: str, ranks: Sequence[int], lead_s: float | None = None, tag: str | None = None
) -> int | None:
    """A step that none of the living ranks among these will have begun `lead_s` seconds from now.

    tag: of the timers whose steps count, as for `furthest_step`.

    None when no rank has begun a step yet. Takes about a second, or three where ranks are on other
    machines, and up to the lead where steps take longer than that.
    """
    there = survey(log_dir, ranks)
    remote = any(there.ranks[number].source != "journal" for number in there.alive)
    lead = (LEAD_REMOTE_S if remote else LEAD_LOCAL_S) if lead_s is None else lead_s
    sample = SAMPLE_REMOTE_S if remote else SAMPLE_LOCAL_S
    before = _seen(there, tag)
    return watched_step(before, lambda: _seen(survey(log_dir, ranks), tag), sample, lead)


def furthest_step(rank: Rank, tag: str | None) -> int | None:
    """The step of the rank's timers with this tag, the furthest of them; without a tag that of its
    main thread. None if none has begun a step."""
    if tag is None:
        return rank.step
    return max((thread.step for thread in rank.threads if thread.tag == tag), default=None)


class Seen(NamedTuple):
    """The step of a rank, and when it was at that: at_s by any clock, the same for all of this
    rank; known_s by `time.monotonic` here, as far as is known."""

    step: int
    at_s: float
    known_s: float


def watched_step(
    before: Mapping[int, Seen],
    look: Callable[[], Mapping[int, Seen]],
    pause_s: float,
    lead_s: float,
) -> int | None:
    """A step that no rank will have begun `lead_s` seconds from now, if each goes on as fast as the
    fastest; None when no rank has begun a step.

    look: sees the steps again. That happens after `pause_s` seconds, and then after longer and
        longer pauses until the speed is known or `lead_s` is over: a rank that has not moved for
        so long begins one step within the lead at most.
    """
    until = time.monotonic() + max(pause_s, lead_s)
    while True:
        time.sleep(min(pause_s, max(0.0, until - time.monotonic())))
        after = look()
        before = {**after, **before}
        moved = max((after[n].step - before[n].step for n in after), default=0)
        if not after or moved >= MOVES_ENOUGH or time.monotonic() >= until:
            return _step_beyond(before, after, lead_s)
        pause_s *= 2


def _step_beyond(
    before: Mapping[int, Seen], after: Mapping[int, Seen], lead_s: float
) -> int | None:
    if not after:
        return None
    speed = max(_speed(before[n], after[n]) for n in after)
    now = time.monotonic()
    furthest = max(seen.step + speed * max(0.0, now - seen.known_s) for seen in after.values())
    return math.floor(furthest) + max(2, math.ceil(speed * lead_s) + 1)


def _speed(before: Seen, after: Seen) -> float:
    """Steps a second, at most: the next step may begin just after the rank was seen. 0 for a rank
    that was not seen anew."""
    seconds = after.at_s - before.at_s
    return (max(0, after.step - before.step) + 1) / seconds if seconds > APART_S else 0.0


def _seen(found: Survey, tag: str | None) -> dict[int, Seen]:
    now = time.monotonic()
    known: dict[int, Seen] = {}
    for number in found.alive:
        rank = found.ranks[number]
        # What a heartbeat says may be two seconds old.
        age = 0.0 if rank.source == "journal" else rank.beat_age_s or 0.0
        if (step := furthest_step(rank, tag)) is not None:
            known[number] = Seen(step, now - age, now - age)
    return known
