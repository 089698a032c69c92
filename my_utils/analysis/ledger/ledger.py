"""The ledger of a job: each nanosecond of each rank, over all attempts, in exactly one row.

Nothing is scaled. Each rule moves time from one row of a step to another, so that the sum of a
rank's rows stays its wall clock.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from ..verdict.run_data import CLOSED, Process
from ..verdict.warmup import warmup_of
from .in_vain import steps_in_vain
from .meetings import Waits, split_waits
from .rank_times import AttemptTimes, Gap, RankTimes
from .rows import (
    CHECKPOINT,
    CLOSING,
    COMMUNICATION,
    COMPUTE,
    COPIES,
    EXIT,
    GC,
    GOODPUT,
    HANG,
    IN_STEPS,
    IN_VAIN,
    INPUT,
    LAUNCH,
    LAUNCHER,
    NO_CORE,
    NOT_RECORDED,
    OTHER_CODE,
    PAUSE,
    PLACES,
    QUOTA,
    RESTART,
    ROWS,
    WAITING,
    WARM_UP,
)
from .sweep import Integers

HUNG_S = 30.0  # without progress before its end, from which on a process hung
NS_IN_US = 1000
# From which the host's costs and the warm-up are taken: the others come before them.
_TAKEN_FROM = (COMPUTE, COMMUNICATION, INPUT, COPIES, OTHER_CODE)

Mask = npt.NDArray[np.bool_]


@dataclass
class Culprit:
    """A rank that others wait for. wait_ns: of all of them together; row: in which it takes longer
    than they do in those steps, empty where no row shows it."""

    rank: int
    wait_ns: int
    row: str


@dataclass
class Attempt:
    """One start of the job's processes. first_step, last_step: None where it did no step. in_vain:
    of its steps, those that a later attempt did again, the first and the last; None for none."""

    number: int
    first_step: int | None
    last_step: int | None
    in_vain: tuple[int, int] | None


@dataclass
class Ledger:
    """ns: rank × row, in the order of `ROWS`; each rank's sum is its wall clock, `wall_ns`.
    begin_ns: of the job, Unix time. culprits: those that others wait for most, at most eight."""

    ranks: list[int]
    begin_ns: int
    ns: Integers
    wall_ns: Integers
    attempts: list[Attempt]
    culprits: list[Culprit] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def share(self, *rows: str) -> float:
        """Of the wall clock of all ranks."""
        whole = int(self.wall_ns.sum())
        return self.total_ns(*rows) / whole if whole else 0.0

    def total_ns(self, *rows: str) -> int:
        return int(sum(int(self.ns[:, PLACES[row]].sum()) for row in rows))

    @property
    def goodput(self) -> float:
        """The share of the steps that were kept, without what is above their usual at first."""
        return self.share(*GOODPUT)


def ledger_of(
    ranks: Sequence[RankTimes],
    missing: Sequence[int] = (),
    processes: Mapping[int, Process] | None = None,
    started_ns: int | None = None,
    ended_ns: int | None = None,
    hung_s: float = HUNG_S,
    inferred: Sequence[tuple[str, Collection[int]]] = (),
) -> Ledger | None:
    """inferred: stages, and the ranks that meet in them, where that was not recorded. missing:
    ranks without files. processes: by rank. started_ns, ended_ns: of the job, Unix
    time, where they are known. None where no rank has a stage."""
    if not ranks:
        return None
    ranks = sorted(ranks, key=lambda one: one.rank)
    sheets = [_Sheet(one) for one in ranks]
    waits = split_waits(ranks, [sheet.of_attempts for sheet in sheets], inferred)
    counts = _warm_ups(sheets)
    vain, notes = steps_in_vain(ranks)
    for sheet in sheets:
        sheet.take_host_costs(counts)
        sheet.take_warm_ups(counts)
        sheet.take_pauses(counts)
        sheet.take_in_vain(vain)
    known = processes or {}
    begins = [began for one in ranks for began in _began(one)]
    begin_ns = min([*begins, *([] if started_ns is None else [started_ns])])
    ends = [_end_of(one, known.get(one.rank)) for one in ranks]
    end_ns = max(ends) if ended_ns is None else max(ended_ns, *ends)
    numbers = [*(one.rank for one in ranks), *missing]
    ns = np.zeros((len(numbers), len(ROWS)), np.int64)
    wall_ns = np.full(len(numbers), end_ns - begin_ns)
    for row, (one, sheet) in enumerate(zip(ranks, sheets, strict=True)):
        own_end_ns = max(end_ns - one.moved_ns, one.last_ns)
        sheet.add_outside(begin_ns, own_end_ns, known.get(one.rank), hung_s)
        ns[row] = sheet.totals()
        wall_ns[row] = own_end_ns - begin_ns
    ns[len(ranks) :, PLACES[NOT_RECORDED]] = end_ns - begin_ns
    return Ledger(
        numbers, begin_ns, ns, wall_ns, _attempts(ranks, vain),
        _culprits(ranks, sheets, waits), notes,
    )  # fmt: skip


def _began(one: RankTimes) -> list[int]:
    began = [each.began_ns for each in one.attempts.values() if each.began_ns is not None]
    return [min([*began, one.first_ns])]


def _end_of(one: RankTimes, process: Process | None) -> int:
    seen_ns = one.last_ns + one.moved_ns
    return seen_ns if process is None else max(seen_ns, process.seen_ns)


class _Sheet:
    """A rank's times while they are moved to their rows. of_attempts: step × row of each attempt;
    outside: by row."""

    def __init__(self, times: RankTimes) -> None:
        self._times = times
        self.of_attempts = {number: one.ns.copy() for number, one in times.attempts.items()}
        self._outside = np.zeros(len(ROWS), np.int64)

    def take_host_costs(self, counts: Mapping[int, int]) -> None:
        """Moves what the host took from the rows that are above their usual."""
        for number, one in self._times.attempts.items():
            ns = self.of_attempts[number]
            usual = _usual(ns, counts.get(number, 0))
            if not one.counters or usual is None:
                continue
            above = np.maximum(ns - usual, 0)
            for row, wanted in _host_costs(one).items():
                _move(ns, above, wanted, PLACES[row])

    def take_warm_ups(self, counts: Mapping[int, int]) -> None:
        for number, ns in self.of_attempts.items():
            count = counts.get(number, 0)
            usual = _usual(ns, count)
            if count and usual is not None:
                rows = [PLACES[row] for row in _TAKEN_FROM]
                first = ns[:count]
                above = np.maximum(first[:, rows] - usual[rows], 0)
                first[:, rows] -= above
                first[:, PLACES[WARM_UP]] += above.sum(1)

    def take_pauses(self, counts: Mapping[int, int]) -> None:
        for number, ns in self.of_attempts.items():
            usual = _usual(ns, counts.get(number, 0))
            if usual is not None:
                above = np.maximum(ns[:, PLACES[OTHER_CODE]] - usual[PLACES[OTHER_CODE]], 0)
                ns[:, PLACES[OTHER_CODE]] -= above
                ns[:, PLACES[PAUSE]] += above

    def take_in_vain(self, vain: Mapping[int, tuple[int, int]]) -> None:
        for number, (first, last) in vain.items():
            if number in self.of_attempts:
                steps = self._times.attempts[number].steps
                those = (steps >= first) & (steps <= last)
                ns = self.of_attempts[number]
                kept = np.zeros(len(ns), np.int64)
                if self._times.is_automatic:  # a checkpoint counts into the step after it
                    kept[steps == first] = ns[steps == first, PLACES[CHECKPOINT]]
                lost = ns[those].sum(1) - kept[those]
                ns[those] = 0
                ns[those, PLACES[IN_VAIN]] = lost
                ns[those, PLACES[CHECKPOINT]] = kept[those]

    def add_outside(
        self, begin_ns: int, end_ns: int, process: Process | None, hung_s: float
    ) -> None:
        """What lies before, between and behind the attempts' stages."""
        times = self._times
        for one in times.attempts.values():
            for row, ns in one.outside.items():
                self._outside[PLACES[row]] += ns
        first, *_ = times.attempts.values()
        self._split(begin_ns, times.first_ns, (LAUNCHER, first.began_ns), (LAUNCH, None))
        for gap in times.gaps:
            self._add_gap(gap)
        self._add_end(end_ns, process, hung_s)

    def _add_gap(self, gap: Gap) -> None:
        before, after = (self._times.attempts[one] for one in (gap.before, gap.after))
        self._split(
            gap.begin_ns, gap.end_ns,
            (CLOSING, gap.begin_ns if before.ended_ns is None else before.ended_ns),
            (RESTART, after.set_up_ns if after.began_ns is None else after.began_ns),
            (LAUNCH, None),
        )  # fmt: skip

    def _add_end(self, end_ns: int, process: Process | None, hung_s: float) -> None:
        times = self._times
        *_, last = times.attempts.values()
        seen_ns = None if process is None else process.seen_ns - times.moved_ns
        if process is None or seen_ns is None:
            self._split(times.last_ns, end_ns, (CLOSING, last.ended_ns), (NOT_RECORDED, None))
        elif process.state == CLOSED:
            self._split(times.last_ns, end_ns, (CLOSING, seen_ns), (EXIT, None))
        else:
            hung = seen_ns - times.last_ns >= hung_s * 1e9
            row = HANG if hung else OTHER_CODE
            self._split(times.last_ns, end_ns, (row, seen_ns), (EXIT, None))

    def _split(self, from_ns: int, to_ns: int, *until: tuple[str, int | None]) -> None:
        """Gives each row the time until a moment. One that is not known, or out of order, gives its
        row nothing; the last one has the rest."""
        for row, moment in until[:-1]:
            at_ns = from_ns if moment is None else min(max(moment, from_ns), to_ns)
            self._outside[PLACES[row]] += at_ns - from_ns
            from_ns = at_ns
        self._outside[PLACES[until[-1][0]]] += to_ns - from_ns

    def totals(self) -> Integers:
        found = self._outside.copy()
        for ns in self.of_attempts.values():
            found[:IN_STEPS] += ns.sum(0)
        return found


def _usual(ns: Integers, count: int) -> Integers | None:
    """Of each row the median of the steps behind the warm-up; None where there are none."""
    later = ns[count:]
    return np.median(later, axis=0).astype(np.int64) if len(later) else None


def _host_costs(one: AttemptTimes) -> dict[str, Integers]:
    """ns of each step by row; a quota is a part of the delay."""
    zero = np.zeros(len(one.steps), np.int64)
    known = {name: values * NS_IN_US for name, values in one.counters.items()}
    delay = known.get("delay_us", zero)
    quota = np.minimum(known.get("quota_us", zero), delay)
    gc = sum((known.get(f"gc{n}_us", zero) for n in range(3)), zero)
    return {GC: gc, QUOTA: quota, NO_CORE: delay - quota}


def _move(ns: Integers, above: Integers, wanted: Integers, to: int) -> None:
    """Moves what is wanted of each step to a row, as far as others are above their usual: first
    those that are above it most in all."""
    rows = [PLACES[row] for row in _TAKEN_FROM]
    for row in sorted(rows, key=lambda row: -int(above[:, row].sum())):
        taken = np.minimum(wanted, above[:, row])
        ns[:, row] -= taken
        above[:, row] -= taken
        ns[:, to] += taken
        wanted = wanted - taken


def _warm_ups(sheets: Sequence[_Sheet]) -> dict[int, int]:
    """Of each attempt how many steps at its beginning are left out of what is usual."""
    numbers = sorted({number for sheet in sheets for number in sheet.of_attempts})
    return {number: _warm_up(sheets, number) for number in numbers}


def _warm_up(sheets: Sequence[_Sheet], number: int) -> int:
    series = [sheet.of_attempts[number].sum(1) for sheet in sheets if number in sheet.of_attempts]
    count = max(len(one) for one in series)
    if not count:
        return 0
    step_ns = np.full((len(series), count), np.nan)
    for row, one in enumerate(series):
        step_ns[row, : len(one)] = one
    return warmup_of(step_ns)


def _attempts(ranks: Sequence[RankTimes], vain: Mapping[int, tuple[int, int]]) -> list[Attempt]:
    found = []
    for number in sorted({number for one in ranks for number in one.attempts}):
        steps = [
            one.attempts[number].steps
            for one in ranks
            if number in one.attempts and len(one.attempts[number].steps)
        ]
        first = min((int(one[0]) for one in steps), default=None)
        last = max((int(one[-1]) for one in steps), default=None)
        found.append(Attempt(number, first, last, vain.get(number)))
    return found


CULPRITS_MAX = 8


def _culprits(ranks: Sequence[RankTimes], sheets: Sequence[_Sheet], waits: Waits) -> list[Culprit]:
    order = sorted(waits.for_rank, key=lambda row: -waits.for_rank[row])[:CULPRITS_MAX]
    return [
        Culprit(ranks[row].rank, waits.for_rank[row], _longer_row(row, sheets, waits))
        for row in order
        if waits.for_rank[row]
    ]


def _longer_row(row: int, sheets: Sequence[_Sheet], waits: Waits) -> str:
    """The row in which a rank takes most above the median of the others, in the steps in which they
    wait for it."""
    skipped = [PLACES[name] for name in (WAITING, COMMUNICATION)]
    above = np.zeros(IN_STEPS)
    for number, places in waits.steps[row].items():
        own = sheets[row].of_attempts[number]
        others = [
            sheet.of_attempts[number]
            for at, sheet in enumerate(sheets)
            if at != row and number in sheet.of_attempts
        ]
        those = np.array(sorted(places))
        those = those[those < min([len(own), *(len(one) for one in others)], default=0)]
        if len(those) and others:
            usual = np.median([one[those] for one in others], axis=0)
            above += np.maximum(own[those] - usual, 0).sum(0)
    above[skipped] = 0
    best = int(above.argmax())
    return list(ROWS)[best] if above[best] > 0 else ""
