"""What a rank's training thread did at each moment, added up by step and stage."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ...core.run_files.run_metadata import Note
from ..verdict.rank_files import RankStages, chosen, depths_of, last_run
from ..verdict.tracks import training_rows
from .rows import (
    CLOSING,
    COMPUTE,
    EVALUATION,
    INPUT,
    LAUNCH,
    NOT_RECORDED,
    RESTORE,
    row_of_stage,
)
from .sweep import Integers, segments_of

OPTIMIZER = "optimizer"  # as `my_utils run` names it: behind it, a step is done
COUNTERS = ("gc0_us", "gc1_us", "gc2_us", "delay_us", "quota_us")
_BEGINS_A_STEP = (INPUT, COMPUTE, EVALUATION)  # what comes before the first of these is launch

_INTEGER = re.compile("-?[0-9]{1,19}")

Mask = npt.NDArray[np.bool_]


class Gap(NamedTuple):
    """Between the last stage of an attempt and the first one of the next, Unix ns."""

    before: int
    after: int
    begin_ns: int
    end_ns: int


class Stays(NamedTuple):
    """A stage each time it ran: the place of its step, and what it took beside stages inside."""

    place: Integers
    own_ns: Integers


@dataclass
class AttemptTimes:
    """One start of a rank's process. began_ns: of the process, Unix time; set_up_ns, ended_ns: of
    its recording; None where it is not known. steps: rising. ns: step × path, and in no stage last.
    outside: ns before its first step and after its last one, by row. stays: by path, of stages in
    which ranks meet, or may. counters: µs of each step, by name, 0 where missing. saved: keys of
    its checkpoints, and the step that was done last before each; restored: of those that it began
    with."""

    number: int
    began_ns: int | None = None
    set_up_ns: int | None = None
    ended_ns: int | None = None
    steps: Integers = field(default_factory=lambda: np.zeros(0, np.int64))
    ns: Integers = field(default_factory=lambda: np.zeros((0, 1), np.int64))
    outside: dict[str, int] = field(default_factory=dict)
    stays: dict[int, Stays] = field(default_factory=dict)
    counters: dict[str, Integers] = field(default_factory=dict)
    saved: list[tuple[set[str], int]] = field(default_factory=list)
    restored: set[str] = field(default_factory=set)


@dataclass
class RankTimes:
    """All times are on the axis of the rank's first rows: steps of the system's clock are taken
    out; moved_ns is their sum. first_ns, last_ns: of its stages. rows: of each path, and of time
    in no stage last, the row of the ledger. meetings: stage, members and kind; none where the run
    did not record them."""

    rank: int
    paths: Sequence[str]
    is_automatic: bool
    first_ns: int
    last_ns: int
    moved_ns: int
    attempts: dict[int, AttemptTimes]
    gaps: list[Gap]
    meetings: list[tuple[str, str, str]]


def sums_at(places: Integers, values: npt.NDArray[np.generic], count: int) -> Integers:
    """Sums of whole numbers by place; exact below 2^53, which is 104 days in ns."""
    return np.bincount(places, values, count).astype(np.int64)


def times_of_rank(rank: RankStages) -> RankTimes | None:
    """None for a rank none of whose stages ended. Thread-safe."""
    is_automatic = any(note.name == "my_utils.run" for note in rank.notes)
    if not is_automatic:
        rank = last_run(rank)
    stages = chosen(rank.stages, training_rows(rank))
    stages = chosen(stages, stages["end_ns"] > stages["begin_ns"])
    if not len(stages["step"]):
        return None
    attempts, moved_ns = _attempts(rank.notes)
    path = stages["path"].astype(np.int64)
    depth = depths_of(rank.around)[path]
    segments = segments_of(stages["begin_ns"], stages["end_ns"], depth)
    times = RankTimes(
        rank.metadata.rank, rank.paths, is_automatic, int(segments.begin_ns[0]),
        int(segments.begin_ns[-1]), moved_ns, attempts, [],
        list(dict.fromkeys(
            (note.pairs.get("stage", ""), note.pairs.get("members", ""), note.pairs.get("kind", ""))
            for note in rank.notes if note.name == "my_utils.sync"
        )),
    )  # fmt: skip
    attempt, step = stages["attempt"].astype(np.int64), stages["step"]
    ns = np.diff(segments.begin_ns)
    is_in_none = segments.owner < 0
    since = np.where(is_in_none, segments.since, segments.owner)
    where = path[segments.owner]
    where[is_in_none] = len(rank.paths)
    gaps = _gaps(attempt[segments.since], is_in_none)
    for at in np.flatnonzero(gaps).tolist():
        times.gaps.append(Gap(
            int(attempt[segments.since[at]]), int(attempt[segments.since[at + 1]]),
            int(segments.begin_ns[at]), int(segments.begin_ns[at + 1]),
        ))  # fmt: skip
    kinds = [row_of_stage(name) for name in rank.paths]
    meets_in = {stage for stage, _, _ in times.meetings} or {*rank.paths}  # else it is inferred
    meeting_paths = _places_of(rank.paths, meets_in)
    for number in np.unique(attempt).tolist():
        mine = attempt == number
        found = attempts.setdefault(number, AttemptTimes(number))
        here = (attempt[since] == number) & ~gaps
        in_steps = _Attempt(
            found, segments.begin_ns[:-1][here], ns[here], step[since][here], where[here], kinds
        ).add(rank, stages["begin_ns"][mine], stages["end_ns"][mine], step[mine], path[mine],
              is_automatic)  # fmt: skip
        here[here] = in_steps & ~is_in_none[here]
        own_ns = sums_at(segments.owner[here], ns[here], len(path))
        for one in meeting_paths:
            rows = np.flatnonzero(mine & (path == one) & np.isin(step, found.steps))
            rows = rows[np.argsort(stages["begin_ns"][rows], kind="stable")]
            found.stays[one] = Stays(np.searchsorted(found.steps, step[rows]), own_ns[rows])
        found.counters = _counters(rank, found)
        steps_done = mine & np.isin(path, _places_of(rank.paths, {OPTIMIZER}))
        _add_files(rank.notes, found, stages["end_ns"][steps_done], step[steps_done])
    times.attempts = dict(sorted(attempts.items()))
    return times


def _gaps(attempt: Integers, is_in_none: Mask) -> Mask:
    """Which segments lie between two attempts. attempt: of the stage that began last."""
    found: Mask = is_in_none & (np.append(attempt[1:], attempt[-1:]) != attempt)
    return found


class _Attempt:
    """Sorts the segments of an attempt into its steps and what is outside."""

    def __init__(
        self, found: AttemptTimes, begin_ns: Integers, ns: Integers, step: Integers,
        where: Integers, kinds: Sequence[str],
    ) -> None:  # fmt: skip
        self._found, self._begin_ns, self._ns = found, begin_ns, ns
        self._step, self._where = step, where
        self._restores = np.array([*(row == RESTORE for row in kinds), False])
        self._begins = np.array([row in _BEGINS_A_STEP for row in kinds])
        self._left = np.ones(len(ns), bool)

    def add(
        self, rank: RankStages, begins: Integers, ends: Integers, step: Integers, path: Integers,
        is_automatic: bool,
    ) -> Mask:  # fmt: skip
        """Returns which of the segments are in steps. begins, ends, step, path: of the attempt's
        stages."""
        in_steps = step >= 0 if is_automatic else np.ones(len(step), bool)
        for lost in rank.metadata.lost:
            if lost.attempt == self._found.number and lost.first is not None:
                self._lose(begins, ends, step, lost.first, lost.last)
        starts = begins[in_steps & self._begins[path]]
        first_ns = int((starts if len(starts) else begins).min())
        self._take(self._begin_ns < first_ns, LAUNCH)
        after_ns = int(ends[in_steps].max()) if in_steps.any() else first_ns
        self._take((self._begin_ns >= after_ns) | ((self._step < 0) & is_automatic), CLOSING)
        self._add_steps()
        return self._left

    def _lose(
        self, begins: Integers, ends: Integers, step: Integers, first: int, last: int | None
    ) -> None:
        """What lies between the whole steps before and behind those whose rows were lost."""
        before, behind = ends[step < first], begins[step > (first if last is None else last)]
        from_ns = int(before.max()) if len(before) else int(begins.min())
        to_ns = int(behind.min()) if len(behind) else int(ends.max())
        lost = (self._begin_ns >= from_ns) & (self._begin_ns < to_ns) & self._left
        self._count(lost, NOT_RECORDED)

    def _take(self, those: Mask, row: str) -> None:
        restores = self._restores[self._where]
        self._count(those & self._left & restores, RESTORE)
        self._count(those & self._left, row)

    def _count(self, those: Mask, row: str) -> None:
        if those.any():
            outside = self._found.outside
            outside[row] = outside.get(row, 0) + int(self._ns[those].sum())
            self._left &= ~those

    def _add_steps(self) -> None:
        step, where, ns = (one[self._left] for one in (self._step, self._where, self._ns))
        width = len(self._restores)
        self._found.steps, places = np.unique(step, return_inverse=True)
        shape = (len(self._found.steps), width)
        self._found.ns = sums_at(places * width + where, ns, shape[0] * width).reshape(shape)


def _places_of(paths: Sequence[str], stages: set[str]) -> list[int]:
    return [place for place, path in enumerate(paths) if path in stages]


def _attempts(notes: Sequence[Note]) -> tuple[dict[int, AttemptTimes], int]:
    """The processes that rows name, and the sum of the steps of the system's clock."""
    found: dict[int, AttemptTimes] = {}
    before_ns, moved_ns, last = 0, 0, None
    for note in notes:
        if note.name == "my_utils.process":
            if note.attempt != last:
                before_ns, last = moved_ns, note.attempt
            began_ns = _integer(note.pairs.get("began_ns", ""))
            one = found.setdefault(note.attempt, AttemptTimes(note.attempt))
            one.set_up_ns = note.at_ns
            one.began_ns = None if began_ns is None else began_ns - before_ns
        elif note.name == "my_utils.clock_step":
            moved_ns = before_ns + (_integer(note.pairs.get("total_ns", "")) or 0)
        elif note.name == "my_utils.run_end" and note.attempt in found:
            found[note.attempt].ended_ns = note.at_ns
    return found, moved_ns


def _add_files(
    notes: Sequence[Note], found: AttemptTimes, end_ns: Integers, step: Integers
) -> None:
    """Of its checkpoints. end_ns, step: of its optimizers."""
    for note in notes:
        if note.name != "my_utils.file" or note.attempt != found.number:
            continue
        keys = {f"{key}={note.pairs[key]}" for key in ("path", "inode") if key in note.pairs}
        if note.pairs.get("did") == "saved":
            done = step[end_ns <= note.at_ns]
            found.saved.append((keys, int(done.max(initial=-1))))
        else:
            found.restored |= keys


def _integer(text: str) -> int | None:
    """Of a row, which may be damaged: a moment or a difference in ns."""
    return int(text) if _INTEGER.fullmatch(text) else None


def _counters(rank: RankStages, found: AttemptTimes) -> dict[str, Integers]:
    columns = rank.counters
    if not columns or not len(columns["step"]) or not len(found.steps):
        return {}
    mine = (columns["attempt"] == found.number) & np.isin(columns["step"], found.steps)
    return dict(_sums(columns, rank.counter_names, mine, found.steps))


def _sums(
    columns: Mapping[str, npt.NDArray[np.generic]], names: Sequence[str], mine: Mask,
    steps: Integers,
) -> Iterator[tuple[str, Integers]]:  # fmt: skip
    for number, name in enumerate(names):
        short = name.removeprefix("host.")
        if short not in COUNTERS or short == name:
            continue
        those = mine & (columns["name"] == number)
        known = np.nan_to_num(columns["value"][those].astype("f8"))
        places = np.searchsorted(steps, columns["step"][those])
        yield short, sums_at(places, np.maximum(known, 0), len(steps))
