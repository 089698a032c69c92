"""Which step of a run a moment is, by the system's clock of its lowest rank, as it was then.

Of steps that this rank did not do, by that of the next rank that did, no later than what follows.
Where the clock was set back, steps before that count as no later than those behind it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ...core.moments import Moment, moment_text
from ...core.ranges import STEP_MAX
from ...core.run_files.newest import run_folders
from ...core.run_files.run_metadata import Note
from .load import NothingToJudge, load_run
from .rank_files import RankStages, clock_ahead_ns, find_rank_files, read_attempts
from .run_data import Integers, Matrix, RunData


@dataclass
class RunClock:
    """steps: rising. begin_ns: when each began, Unix time, rising. step_ns: what one took. width:
    of how many steps each has the mean; `begin_ns` is that of the first then. end_ns: of the last
    step. A column's steps are taken to follow one another evenly."""

    steps: Integers
    begin_ns: Matrix
    step_ns: Matrix
    width: int
    end_ns: float

    def first_from(self, unix_s: float) -> int:
        """The first step that begins at that moment or later; after the last one the next."""
        ns = unix_s * 1e9
        at = int(np.searchsorted(self.begin_ns, ns, "left"))
        if at and self.width > 1:
            into = (ns - float(self.begin_ns[at - 1])) / max(float(self.step_ns[at - 1]), 1.0)
            if into < self.width:
                return int(self.steps[at - 1]) + int(np.ceil(into))
        return int(self.steps[at]) if at < len(self.steps) else self.last_step + 1

    def step_at(self, unix_s: float) -> int:
        """The step that ran then, or the last one before."""
        ns = unix_s * 1e9
        at = max(int(np.searchsorted(self.begin_ns, ns, "right")) - 1, 0)
        into = (ns - float(self.begin_ns[at])) / max(float(self.step_ns[at]), 1.0)
        return int(self.steps[at]) + min(max(int(into), 0), self.width - 1)

    @property
    def last_step(self) -> int:
        return int(self.steps[-1]) + self.width - 1


def make_clock(run: RunData, notes: Mapping[int, Sequence[Note]]) -> RunClock:
    """notes: of ranks, for where their clocks were set. The run must have steps."""
    begins = run.start_ns + run.step_begins - (run.width - 1) / 2 * run.step_ns  # it has the mean
    ends = begins + run.width * run.step_ns
    known = np.flatnonzero(np.isfinite(ends).any(0))
    rows = np.isfinite(ends[:, known]).argmax(0)
    for row, rank in enumerate(run.ranks.tolist()):
        if of_rank := notes.get(rank, ()):
            begins[row] = _to_the_clock(begins[row], of_rank)
            ends[row] = _to_the_clock(ends[row], of_rank)
    begins, ends = begins[rows, known], ends[rows, known]
    next_own = np.minimum.accumulate(np.where(rows == 0, begins, np.inf)[::-1])[::-1]
    begins = np.maximum.accumulate(np.minimum(begins, next_own))
    end_ns = max(float(ends[-1]), float(begins[-1]))
    return RunClock(run.steps[known], begins, run.step_ns[rows, known], run.width, end_ns)


def _to_the_clock(moments_ns: Matrix, notes: Sequence[Note]) -> Matrix:
    """Moments of a rank's axis as the system's clock had them then."""
    ahead_ns = np.array([0, *clock_ahead_ns(notes)])
    since_ns = np.maximum.accumulate([note.at_ns for note in notes])
    found: Matrix = moments_ns + ahead_ns[np.searchsorted(since_ns, moments_ns, "right")]
    return found


def read_clock(paths: Sequence[str | os.PathLike[str]]) -> RunClock | None:
    """Of the run in these paths, as `load_run` takes them; None where no rank has a step. Reads the
    lowest rank alone where that numbers its steps as the run does: where there is one attempt."""
    names = run_folders(paths)
    file_sets = sorted(find_rank_files(names)[0], key=lambda one: one.rank)
    attempts = {number for one in file_sets for number in read_attempts(one)[1]}
    lowest = [one.rank for one in file_sets[:1]]
    notes: dict[int, Sequence[Note]] = {}

    def keep(rank: RankStages) -> None:
        notes[rank.metadata.rank] = rank.notes

    try:
        ranks = lowest if len(attempts) < 2 else None
        run = load_run(names, ranks, whole=True, few=True, on_rank=keep) if lowest else None
    except NothingToJudge:
        return None
    return None if run is None else make_clock(run, notes)


def steps_between(
    clock: RunClock, since: Moment, until: Moment | None, option: str
) -> tuple[int, int]:
    """The steps that begin from `since` on and before `until`, None for all of them, as a half-open
    range. A step is itself. option: whose moments they are, for the ValueError where no step does.
    """
    first = _first_from(clock, since, option)
    last = STEP_MAX if until is None else _first_from(clock, until, option)
    if first > clock.last_step or last <= first:
        given = since.text if until is None else f"{since.text} {until.text}"
        raise ValueError(f"{option} must name steps of the run, {_span(clock)}, not {given!r}")
    return first, last


def step_at(clock: RunClock, moment: Moment, option: str) -> int:
    """The step that ran then; ValueError where none did."""
    if moment.step is not None:
        inside = int(clock.steps[0]) <= moment.step <= clock.last_step
        step = moment.step
    else:
        unix_s = _unix_s(clock, moment, option)
        inside = clock.begin_ns[0] <= unix_s * 1e9 <= clock.end_ns
        step = clock.step_at(unix_s)
    if not inside:
        raise ValueError(f"{option} must be in the run, {_span(clock)}, not {moment.text!r}")
    return step


def _first_from(clock: RunClock, moment: Moment, option: str) -> int:
    if moment.step is not None:
        return moment.step
    return clock.first_from(_unix_s(clock, moment, option))


def _unix_s(clock: RunClock, moment: Moment, option: str) -> float:
    found = moment.unix_s(float(clock.begin_ns[0]) / 1e9, clock.end_ns / 1e9)
    if found is None:
        raise ValueError(f"{option} must be in the run, {_span(clock)}, not {moment.text!r}")
    return found


def _span(clock: RunClock) -> str:
    begin, end = moment_text(float(clock.begin_ns[0]) / 1e9), moment_text(clock.end_ns / 1e9)
    return f"steps {int(clock.steps[0])} to {clock.last_step}, {begin} to {end}"
