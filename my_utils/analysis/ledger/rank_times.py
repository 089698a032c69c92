"""What a rank's training thread did at each moment, added up by step and row of the ledger."""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ...core.run_files.run_metadata import Note
from ..verdict.device_cells import on_device, rows_with_gpu_times
from ..verdict.kinds import kind_of_stage
from ..verdict.rank_files import (
    RUN_END,
    SPAN_MAX,
    Columns,
    RankStages,
    all_same,
    chosen,
    clock_ahead_ns,
    depths_of,
    last_run,
    nanoseconds,
    programs_of,
)
from ..verdict.run_ranks import OwnAttempts, attempts_together
from ..verdict.tracks import training_rows
from .calls import meetings_inside
from .peers import Peer, stays_with_peers
from .rows import (
    CLOSING,
    COMPUTE,
    EVALUATION,
    IN_NO_STEP,
    IN_STEPS,
    INPUT,
    LAUNCH,
    NOT_RECORDED,
    OTHER_CODE,
    PLACES,
    row_of_stage,
)
from .sweep import Integers, Segments, cut_segments, segments_on_device

PIPELINE = "pipeline"  # a kind of meetings: of a rank with the one before it, or behind it
OPTIMIZER = "optimizer"  # as `my_utils run` names it: behind it, a step is done
COUNTERS = {
    **{f"host.{name}": name for name in ("gc0_us", "gc1_us", "gc2_us", "delay_us", "quota_us")},
    "compile.us": "compile_us",
}
COUNTER_MAX = 1 << 40  # µs; what is more is damage
_BEGINS_A_STEP = (INPUT, COMPUTE, EVALUATION)  # what comes before the first of these is launch

Mask = npt.NDArray[np.bool_]


class Gap(NamedTuple):
    """Between the last stage of an attempt and the first one of the next, Unix ns."""

    before: int
    after: int
    begin_ns: int
    end_ns: int


class Stays(NamedTuple):
    """A stage each time it ran, or each send to another rank, or receive from it, in the order of
    time. place: of its step; own_ns: what it took, beside stages inside; row: the place of the
    ledger's row that has this time."""

    place: Integers
    own_ns: Integers
    row: Integers


@dataclass
class AttemptTimes:
    """One start of a rank's process. began_ns: of the process, Unix time; set_up_ns, ended_ns: of
    its recording; dead_seen_ns: the last sign of life of the attempt before, where that was killed;
    None where it is not known. first_ns, last_ns: of its stages, None where it has none.
    imported_ns: when torch had been imported, None where it is not known; joined_ns: in
    `init_process_group`. steps: rising. ns: step × row, of the first
    `IN_STEPS` rows. outside: ns before its first step and after its last one, by row. stays: by
    stage, of those in which ranks meet, or may. peers: sends and receives of a pipeline, where the
    host knows when they end. counters: µs of each step, by name, 0 where missing. saved: keys of
    its checkpoints, and the step that was done last before each; restored: of those that it began
    with. program: what ran, "" where that is not known."""

    number: int
    began_ns: int | None = None
    set_up_ns: int | None = None
    ended_ns: int | None = None
    dead_seen_ns: int | None = None
    first_ns: int | None = None
    last_ns: int | None = None
    imported_ns: int | None = None
    joined_ns: int = 0
    steps: Integers = field(default_factory=lambda: np.zeros(0, np.int64))
    ns: Integers = field(default_factory=lambda: np.zeros((0, IN_STEPS), np.int64))
    outside: dict[str, int] = field(default_factory=dict)
    stays: dict[str, Stays] = field(default_factory=dict)
    peers: dict[Peer, Stays] = field(default_factory=dict)
    counters: dict[str, Integers] = field(default_factory=dict)
    saved: list[tuple[set[str], int]] = field(default_factory=list)
    restored: set[str] = field(default_factory=set)
    program: str = ""


@dataclass
class RankTimes:
    """All times are on the axis of the rank's first rows: steps of the system's clock are taken
    out; moved_ns is their sum. first_ns, last_ns: of its stages. attempts: by number, in their
    order. meetings: stage, members and kind; none where the run did not record them."""

    rank: int
    host: str
    is_automatic: bool
    first_ns: int
    last_ns: int
    moved_ns: int
    attempts: dict[int, AttemptTimes]
    gaps: list[Gap]
    meetings: list[tuple[str, str, str]]

    def own_attempts(self, is_gone: bool) -> OwnAttempts:
        """From the first to the last stage of each; of one without a stage, from its process's
        begin until that of the next one."""
        spans = {}
        next_ns = None
        for number, one in reversed(self.attempts.items()):
            known = (one.began_ns, one.set_up_ns, one.first_ns, one.ended_ns, one.last_ns)
            moments = [ns for ns in known if ns is not None]
            if one.first_ns is not None and one.last_ns is not None:
                spans[number] = one.first_ns, one.last_ns
            else:
                until_ns = max(moments) if next_ns is None else next_ns - 1
                spans[number] = min(moments), max(*moments, until_ns)
            next_ns = min(moments)
        return OwnAttempts(self.host, spans, is_gone)


def numbered_alike(ranks: Sequence[RankTimes], gone: Collection[int] = ()) -> list[RankTimes]:
    """The same with one number for what is one attempt of the run, rising: a rank counts its own
    starts, and one that has come later has less of them. gone: those that the last attempt has no
    more."""
    numbers: list[dict[int, int]] = [{} for _ in ranks]
    number = 0
    spans = [one.own_attempts(one.rank in gone) for one in ranks]
    for together in attempts_together(spans):
        number = max(number + 1, *(own for _, own in together))
        for row, own in together:
            numbers[row][own] = number
    return [_renumbered(one, own) for one, own in zip(ranks, numbers, strict=True)]


def _renumbered(rank: RankTimes, numbers: Mapping[int, int]) -> RankTimes:
    """numbers: by those that the rank has given itself."""
    if all(own == number for own, number in numbers.items()):
        return rank
    attempts = {
        number: replace(rank.attempts[own], number=number) for own, number in numbers.items()
    }
    gaps = [gap._replace(before=numbers[gap.before], after=numbers[gap.after]) for gap in rank.gaps]
    return replace(rank, attempts=dict(sorted(attempts.items())), gaps=gaps)


def attempt_numbers(ranks: Iterable[RankTimes]) -> list[int]:
    """Those of all of them, rising."""
    return sorted({number for one in ranks for number in one.attempts})


def sums_at(places: Integers, values: Integers, count: int) -> Integers:
    """Sums by place, exact: `np.bincount` adds as float64."""
    sums = np.zeros(count, np.int64)
    np.add.at(sums, places, values)
    return sums


def _is_a_span(begin_ns: np.int64, end_ns: np.int64) -> bool:
    return int(end_ns) - int(begin_ns) < SPAN_MAX


def times_of_rank(rank: RankStages) -> RankTimes | None:
    """None for a rank none of whose stages ended, or whose times are damaged. Thread-safe."""
    if not rank.is_automatic:
        rank = last_run(rank)
    stages = chosen(rank.stages, training_rows(rank))
    stages = chosen(stages, stages["end_ns"] > stages["begin_ns"])
    if not len(stages["step"]) or not _is_a_span(stages["begin_ns"].min(), stages["end_ns"].max()):
        return None
    attempts, moved_ns = _processes(rank.notes)
    meetings = [
        (note.pairs.get("stage", ""), note.pairs.get("members", ""), note.pairs.get("kind", ""))
        for note in rank.notes
        if note.name == "my_utils.sync"
    ]
    on_host = functools.cache(functools.partial(_on_host, rank, stages))  # not always needed
    meetings += meetings_inside(rank, stages, on_host)
    on_its_device = _on_device(rank, stages)
    stages, segments = on_its_device or (stages, on_host())
    times = RankTimes(
        rank.metadata.rank, rank.metadata.host, rank.is_automatic, int(segments.begin_ns[0]),
        int(segments.begin_ns[-1]), moved_ns, attempts, [], list(dict.fromkeys(meetings)),
    )  # fmt: skip
    _Sorter(rank, stages, segments, times, on_its_device is None).sort()
    return times


def _on_host(rank: RankStages, stages: Columns) -> Segments:
    depth = depths_of(rank.around)[stages["path"]]
    return cut_segments(stages["begin_ns"], stages["end_ns"], depth)


def _on_device(rank: RankStages, stages: Columns) -> tuple[Columns, Segments] | None:
    """The stages, which end with what they launched on a device, and its segments; None where it
    has no times of its own."""
    origin_ns = rank.metadata.begin_ns
    timed = rows_with_gpu_times(stages, origin_ns)
    found = on_device(stages, timed, rank.paths, rank.around, origin_ns) if timed.any() else None
    if found is None:
        return None
    took_ns = np.rint(stages["cuda_ms"][timed] * 1e6).astype(np.int64)
    ends = stages["end_ns"].copy()
    ends[timed] = np.maximum(ends[timed], stages["cuda_begin_ns"][timed] + took_ns)
    segments = segments_on_device(found, stages["begin_ns"], origin_ns)
    return {**stages, "end_ns": ends}, segments


class _Sorter:
    """Sorts the segments of a rank into the steps of its attempts and what is outside of them.
    by_host: whether they are on its axis."""

    def __init__(
        self, rank: RankStages, stages: Columns, segments: Segments, times: RankTimes, by_host: bool
    ) -> None:
        self._rank, self._stages, self._times = rank, stages, times
        self._owner, self._begin_ns = segments.owner, segments.begin_ns[:-1]
        self._ns = np.diff(segments.begin_ns)
        rows = [row_of_stage(path) for path in rank.paths]
        self._begins_a_step = np.array([row in _BEGINS_A_STEP for row in rows])
        self._path = stages["path"].astype(np.int64)
        is_in_none = segments.owner < 0
        places = np.array([*(PLACES[row] for row in rows), PLACES[OTHER_CODE]])
        paths = self._path[segments.owner]
        paths[is_in_none] = len(rows)
        self._row = places[paths]
        since = np.where(is_in_none, segments.since, segments.owner)
        self._step = stages["step"][since]
        self._attempt = stages["attempt"][since]
        self._left = ~self._take_gaps(segments, is_in_none)
        sent = {stage for stage, _, kind in times.meetings if kind == PIPELINE}
        self._passes_on = np.array([path in sent for path in rank.paths])
        is_told = by_host and bool(sent)  # when a send, or a receive, is over
        self._peers = stays_with_peers(rank, stages, segments, self._step) if is_told else {}

    def _take_gaps(self, segments: Segments, is_in_none: Mask) -> Mask:
        """Which segments are between two attempts."""
        if all_same(self._stages["attempt"]):
            return np.zeros(len(is_in_none), bool)
        attempt = self._stages["attempt"][segments.since]
        gaps: Mask = is_in_none & (np.append(attempt[1:], attempt[-1:]) != attempt)
        for at in np.flatnonzero(gaps).tolist():
            moments = segments.begin_ns[at : at + 2].tolist()
            self._times.gaps.append(Gap(int(attempt[at]), int(attempt[at + 1]), *moments))
        return gaps

    def sort(self) -> None:
        attempts = self._times.attempts
        for number in np.unique(self._stages["attempt"]).tolist():
            found = attempts.setdefault(number, AttemptTimes(number))
            stages = self._stages["attempt"] == number
            found.first_ns = int(self._stages["begin_ns"][stages].min())
            found.last_ns = int(self._stages["end_ns"][stages].max())
            here = self._left & (self._attempt == number)
            here = self._take_outside(found, here, stages)
            self._add_steps(found, here)
            self._add_stays(found, here, stages)
            self._add_peers(found, here)
            found.counters = dict(_counters(self._rank, found))
            self._add_files(found, stages)
        self._times.attempts = dict(sorted(attempts.items()))

    def _take_outside(self, found: AttemptTimes, here: Mask, stages: Mask) -> Mask:
        """Counts what is outside the steps of an attempt; what is left. stages: of the attempt."""
        begins, ends, step = (self._stages[name][stages] for name in ("begin_ns", "end_ns", "step"))
        for lost in self._rank.metadata.lost:
            if lost.attempt == found.number and lost.first is not None:
                last = lost.first if lost.last is None else lost.last
                before, behind = ends[step < lost.first], begins[step > last]
                from_ns = before.max(initial=begins.min())
                to_ns = behind.min(initial=ends.max())
                cut = (self._begin_ns >= from_ns) & (self._begin_ns < to_ns)
                here = self._count(found, here, cut, NOT_RECORDED)
        is_counted = step >= 0 if self._times.is_automatic else np.ones(len(step), bool)
        starts = begins[is_counted & self._begins_a_step[self._path[stages]]]
        first_ns = int((starts if len(starts) else begins).min())
        here = self._take(found, here, self._begin_ns < first_ns, LAUNCH)
        is_after = self._begin_ns >= int(ends[is_counted].max(initial=first_ns))
        if self._times.is_automatic:
            is_after |= self._step < 0
        return self._take(found, here, is_after, CLOSING)

    def _take(self, found: AttemptTimes, here: Mask, those: Mask, row: str) -> Mask:
        here = self._take_in_no_step(found, here, those)
        return self._count(found, here, those, row)

    def _take_in_no_step(self, found: AttemptTimes, here: Mask, those: Mask) -> Mask:
        """What is no part of a step, wherever it is, such as a checkpoint that is loaded."""
        for row in IN_NO_STEP:
            here = self._count(found, here, those & (self._row == PLACES[row]), row)
        return here

    def _count(self, found: AttemptTimes, here: Mask, those: Mask, row: str) -> Mask:
        taken = here & those
        if taken.any():
            found.outside[row] = found.outside.get(row, 0) + int(self._ns[taken].sum())
            here = here & ~those
        return here

    def _add_steps(self, found: AttemptTimes, here: Mask) -> None:
        in_steps = self._take_in_no_step(found, here, here)
        found.steps = np.unique(self._step[here])
        places = np.searchsorted(found.steps, self._step[in_steps]) * IN_STEPS
        cells = sums_at(
            places + self._row[in_steps], self._ns[in_steps], len(found.steps) * IN_STEPS
        )
        found.ns = cells.reshape(len(found.steps), IN_STEPS)

    def _add_stays(self, found: AttemptTimes, here: Mask, stages: Mask) -> None:
        paths = self._meeting_paths()
        if not paths:
            return
        owned = here & (self._owner >= 0)
        own_ns = sums_at(self._owner[owned], self._ns[owned], len(self._path))
        for path in paths:
            rows = np.flatnonzero(stages & (self._path == path))
            rows = rows[np.argsort(self._stages["begin_ns"][rows], kind="stable")]
            places, known = _places_in(found.steps, self._stages["step"][rows])
            stage, places = self._rank.paths[path], places[known]
            row = np.broadcast_to(np.int64(PLACES[row_of_stage(stage)]), len(places))
            found.stays[stage] = Stays(places, own_ns[rows][known], row)

    def _add_peers(self, found: AttemptTimes, here: Mask) -> None:
        """Of the stages of a pipeline: in others ranks meet their groups."""
        for peer, (segment, own_ns) in self._peers.items():
            there = here[segment] & self._passes_on[self._path[self._owner[segment]]]
            there &= self._row[segment] < IN_STEPS
            if there.any():
                segment = segment[there]
                places, _ = _places_in(found.steps, self._step[segment])
                found.peers[peer] = Stays(places, own_ns[there], self._row[segment])

    def _meeting_paths(self) -> list[int]:
        """Where nothing was recorded, of stages that are named for it. Ranks that meet while they
        restore a checkpoint restore it: that is in no step."""
        recorded = {stage for stage, _, _ in self._times.meetings}
        return [
            number
            for number, path in enumerate(self._rank.paths)
            if (path in recorded or (not recorded and kind_of_stage(path) == "communication"))
            and row_of_stage(path) not in IN_NO_STEP
        ]

    def _add_files(self, found: AttemptTimes, stages: Mask) -> None:
        """Of its checkpoints."""
        for note in self._rank.notes:
            if note.name != "my_utils.file" or note.attempt != found.number:
                continue
            keys = {f"{key}={note.pairs[key]}" for key in ("path", "inode") if key in note.pairs}
            if note.pairs.get("did") == "saved":
                found.saved.append((keys, self._done_at(note.at_ns, stages)))
            else:
                found.restored |= keys

    def _done_at(self, at_ns: int, stages: Mask) -> int:
        """The last step of an attempt that was done at a moment, -1 for none."""
        names = np.array([path == OPTIMIZER for path in self._rank.paths])
        ended = stages & names[self._path] & (self._stages["end_ns"] <= at_ns)
        return int(self._stages["step"][ended].max(initial=-1))


def _places_in(steps: Integers, wanted: Integers) -> tuple[Integers, Mask]:
    """The place of each among rising steps, and whether it is there."""
    if not len(steps):
        return np.zeros(len(wanted), np.int64), np.zeros(len(wanted), bool)
    places = np.minimum(np.searchsorted(steps, wanted), len(steps) - 1)
    return places, steps[places] == wanted


def _processes(notes: Sequence[Note]) -> tuple[dict[int, AttemptTimes], int]:
    """The attempts that rows name, and the sum of the steps of the system's clock."""
    found: dict[int, AttemptTimes] = {}
    moved_ns, before_ns, last = 0, 0, None
    for note, moved_ns in zip(notes, clock_ahead_ns(notes), strict=True):
        if note.name == "my_utils.process":
            if note.attempt != last:
                before_ns, last = moved_ns, note.attempt
            one = found.setdefault(note.attempt, AttemptTimes(note.attempt))
            one.set_up_ns = note.at_ns
            one.began_ns = _moment(note, "began_ns", before_ns)
            one.dead_seen_ns = _moment(note, "dead_seen_ns", before_ns)
        elif note.name == "my_utils.launch" and note.attempt in found:
            found[note.attempt].imported_ns = nanoseconds(note.pairs.get("imported_ns"))
            found[note.attempt].joined_ns = nanoseconds(note.pairs.get("process_group_ns")) or 0
        elif note.name == RUN_END and note.attempt in found:
            found[note.attempt].ended_ns = note.at_ns
    for number, program in programs_of(notes).items():
        if number in found:
            found[number].program = program
    return found, moved_ns


def _moment(note: Note, key: str, moved_ns: int) -> int | None:
    at_ns = nanoseconds(note.pairs.get(key))
    return None if at_ns is None else at_ns - moved_ns


def _counters(rank: RankStages, found: AttemptTimes) -> Iterator[tuple[str, Integers]]:
    columns: Mapping[str, npt.NDArray[np.generic]] = rank.counters
    for number, name in enumerate(rank.counter_names):
        if name not in COUNTERS:
            continue
        rows = (columns["name"] == number) & (columns["attempt"] == found.number)
        places, known = _places_in(found.steps, rank.counters["step"][rows])
        values = np.clip(np.nan_to_num(rank.counters["value"][rows][known]), 0, COUNTER_MAX)
        yield COUNTERS[name], sums_at(places[known], values.astype(np.int64), len(found.steps))
