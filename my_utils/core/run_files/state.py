"""The state of the ranks of a run at one moment."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

WORLD_SIZE_MAX = 1 << 20  # a larger one is damage, and nothing is made for each rank of it
COLLECTIVES_TAG = "collectives"  # of the timer whose rows are calls of collectives
# Of a group without a role; another rank may give the label to another group.
NUMBERED_GROUP = re.compile(r"group \d+")


@dataclass(frozen=True)
class OpenStage:
    """A stage that runs, or ran when its process ended."""

    name: str
    step: int
    since_ns: int  # Unix time
    open_s: float


@dataclass(frozen=True)
class FinishedStage:
    name: str
    step: int
    start_ns: int  # Unix time
    duration_ms: float

    @property
    def end_ns(self) -> int:
        return self.start_ns + round(self.duration_ms * 1e6)


@dataclass
class Thread:
    """The stages of one timer on one thread."""

    tid: int
    name: str
    tag: str
    step: int
    open: list[OpenStage] = field(default_factory=list)  # outermost first
    last: list[FinishedStage] = field(default_factory=list)  # newest first
    ended_ns: int | None = None  # Unix time at which its newest finished stage ended

    @property
    def moved_ns(self) -> int | None:
        """When a stage began or ended last; Unix time."""
        began = self.open[-1].since_ns if self.open else None
        return max((t for t in (began, self.ended_ns) if t is not None), default=None)


@dataclass
class Rank:
    """One process of the run. Times of its stages are by its clock, its time offset added. What is
    worked out of the threads is worked out once: they do not change."""

    label: str
    rank: int
    worker: int  # above 0: a worker of the rank, or a second process with its number
    world_size: int
    host: str
    pid: int
    attempt: int
    state: str  # "running", "silent", "dead" or "closed"
    source: str  # "journal" or "heartbeat"
    beat_age_s: float | None  # since the last sign of life
    began_s: float | None  # Unix time of the process's start
    time_offset_s: float  # that the process adds to its clock
    clock_ahead_s: float | None  # its host's clock against that of the files' server
    seen_ns: int  # the moment of all this, on the axis of the stages' times
    dropped: int
    threads: list[Thread]
    left_before: bool = False  # it was not seen after the other ranks began

    @property
    def name(self) -> str:
        """The number, with the worker's behind a dot."""
        return f"{self.rank}.w{self.worker}" if self.worker else str(self.rank)

    @property
    def alive(self) -> bool:
        return self.state in ("running", "silent")

    @cached_property
    def main_threads(self) -> Sequence[Thread]:
        """The timers of the process's first thread, or of all where that one has none."""
        return [thread for thread in self.threads if thread.tid == self.pid] or self.threads

    @cached_property
    def step(self) -> int | None:
        """The step of the main thread, the furthest of its timers; None before the first stage."""
        return max((thread.step for thread in self.main_threads), default=None)

    @cached_property
    def main(self) -> Thread | None:
        """The thread that stands for the process: its first one, if that is in a stage."""
        open_ones = [one for one in self.threads if one.open and one.tag != COLLECTIVES_TAG]
        main = [thread for thread in open_ones if thread.tid == self.pid]
        if main:
            return max(main, key=lambda thread: (thread.step, len(thread.open)))
        return min(open_ones, key=lambda thread: thread.open[-1].since_ns, default=None)

    @cached_property
    def call(self) -> OpenStage | None:
        """The call of a collective, or the wait for it, that the main thread is in."""
        tid = self.pid if self.main is None else self.main.tid
        calls = [one for one in self.threads if one.tag == COLLECTIVES_TAG and one.tid == tid]
        return next((one.open[0] for one in calls if one.open), None)

    @cached_property
    def stack(self) -> tuple[str, ...]:
        """The names of the main thread's open stages, outermost first, and of its call."""
        stages = [] if self.main is None else list(self.main.open)
        return tuple(one.name for one in [*stages, self.call] if one is not None)

    @property
    def open_s(self) -> float | None:
        """How long the innermost stage of the main thread has been open."""
        innermost = self.call or (self.main.open[-1] if self.main else None)
        return None if innermost is None else innermost.open_s

    @cached_property
    def moved_ns(self) -> int | None:
        """When a stage of the main thread began or ended last; Unix time."""
        moments = (thread.moved_ns for thread in self.main_threads)
        return max((moment for moment in moments if moment is not None), default=None)

    @property
    def still_s(self) -> float | None:
        """For how long no stage of the main thread has begun or ended."""
        moved_ns = self.moved_ns
        return None if moved_ns is None else max(0, self.seen_ns - moved_ns) / 1e9


@dataclass(frozen=True)
class Problem:
    """A file that was left out, and why."""

    file: str
    reason: str


@dataclass
class Found:
    """What is in the log directories of a run."""

    ranks: list[Rank]
    problems: list[Problem]
    earlier: list[Rank] = field(default_factory=list)  # what an earlier run left
