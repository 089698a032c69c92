"""The ledger of a job: each nanosecond of each rank, over all attempts, in exactly one row.

Nothing is scaled. Each rule moves time from one row of a step to another, so that the sum of a
rank's rows stays its wall clock.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from ..verdict.rank_files import SPAN_MAX
from ..verdict.run_data import Process
from ..verdict.warmup import find_warmup
from .in_vain import steps_in_vain, with_steps
from .meetings import Waits, split_waits
from .rank_times import RankTimes, attempt_numbers
from .rows import (
    COMMUNICATION,
    EXIT,
    GOODPUT,
    IN_STEPS,
    LAUNCH,
    LAUNCHER,
    NOT_RECORDED,
    PLACES,
    ROWS,
    WAITING,
)
from .sheet import Sheet
from .sweep import Integers

CULPRITS_MAX = 8
CLOCKS_APART_NS = 60 * 10**9  # between hosts: less may be a slow start


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
    of its steps, those that a later attempt did again, the first and the last; None for none.
    ranks: so many were in it, of those that have files."""

    number: int
    first_step: int | None
    last_step: int | None
    in_vain: tuple[int, int] | None
    ranks: int


@dataclass
class Ledger:
    """ns: rank × row, in the order of `ROWS`; each rank's sum is its wall clock, `wall_ns`.
    begin_ns: of the job, Unix time. launch: parts of the row of that name, of all ranks, ns, which
    add up to it; empty where no process recorded them. culprits: those that others wait for most,
    at most eight."""

    ranks: list[int]
    begin_ns: int
    ns: Integers
    wall_ns: Integers
    attempts: list[Attempt]
    culprits: list[Culprit] = field(default_factory=list)
    launch: dict[str, int] = field(default_factory=dict)
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


class Job(NamedTuple):
    """What is known of a job beside its ranks' rows.

    started_ns, ended_ns: Unix time, None where they are not known. missing: ranks without files.
    gone: ranks that the last attempt has no more. processes: by rank. inferred: stages, and the
    ranks that meet in them, where that was not recorded.
    """

    started_ns: int | None = None
    ended_ns: int | None = None
    missing: Sequence[int] = ()
    gone: Collection[int] = ()
    processes: Mapping[int, Process] = MappingProxyType({})
    inferred: Sequence[tuple[str, Collection[int]]] = ()


def make_ledger(
    ranks: Sequence[RankTimes],
    job: Job,
    hung_s: float,
    shown: Collection[int] | None = None,
) -> Ledger | None:
    """None where no rank has a stage, or their times are damaged. hung_s: without progress before
    its end, from which on a process hung. shown: the ranks whose rows the ledger has, all by
    default, and None if the job has none of them; who waits for whom is found among all."""
    if not ranks:
        return None
    shifts = _shifts(ranks)
    begin_ns, end_ns = _span([one for one in ranks if not shifts.get(one.rank)], job)
    if end_ns - begin_ns >= SPAN_MAX:
        return None
    ranks = sorted(ranks, key=lambda one: one.rank)
    sheets = [Sheet(one) for one in ranks]
    waits = split_waits(ranks, [sheet.of_attempts for sheet in sheets], job.inferred)
    counts = {number: _warm_up(sheets, number) for number in attempt_numbers(ranks)}
    vain, notes = steps_in_vain(ranks)
    for sheet in sheets:
        sheet.take_host_costs(counts)
        sheet.take_warm_ups(counts)
        sheet.take_pauses(counts)
        sheet.take_in_vain(vain)
    ns = np.zeros((len(ranks) + len(job.missing), len(ROWS)), np.int64)
    wall_ns = np.full(len(ns), end_ns - begin_ns)
    first = min(min(one.attempts) for one in ranks)
    for row, (one, sheet) in enumerate(zip(ranks, sheets, strict=True)):
        shift_ns = shifts.get(one.rank, 0)
        own_begin_ns = min(begin_ns + shift_ns, one.first_ns)
        own_end_ns = max(end_ns + shift_ns - one.moved_ns, one.last_ns)
        before = LAUNCHER if min(one.attempts) == first else NOT_RECORDED
        sheet.add_begin(own_begin_ns, before, hung_s)
        after = NOT_RECORDED if one.rank in job.gone else EXIT
        sheet.add_end(own_end_ns, job.processes.get(one.rank), hung_s, after)
        ns[row] = sheet.totals()
        wall_ns[row] = own_end_ns - own_begin_ns
    ns[len(ranks) :, PLACES[NOT_RECORDED]] = end_ns - begin_ns
    numbers = [*(one.rank for one in ranks), *job.missing]
    rows = [row for row, rank in enumerate(numbers) if shown is None or rank in shown]
    if not rows:
        return None
    ns, wall_ns = ns[rows], wall_ns[rows]
    launched = [ranks[row] for row in rows if row < len(ranks)]
    return Ledger(
        [numbers[row] for row in rows], begin_ns, ns, wall_ns,
        _attempts(ranks, vain), _culprits(ranks, sheets, waits),
        _launch(launched, int(ns[:, PLACES[LAUNCH]].sum())), notes,
    )  # fmt: skip


def _launch(ranks: Sequence[RankTimes], whole_ns: int) -> dict[str, int]:
    """What of the launches is known, and the rest."""
    known = [
        (max(attempt.imported_ns - attempt.began_ns, 0), max(attempt.joined_ns, 0))
        for one in ranks
        for attempt in one.attempts.values()
        if attempt.imported_ns is not None and attempt.began_ns is not None
    ]
    if not known:
        return {}
    imports_ns = min(sum(imports for imports, _ in known), whole_ns)
    joined_ns = min(sum(joined for _, joined in known), whole_ns - imports_ns)
    rest_ns = whole_ns - imports_ns - joined_ns
    return {"imports": imports_ns, "process group": joined_ns, "rest": rest_ns}


def _shifts(ranks: Sequence[RankTimes]) -> dict[int, int]:
    """By rank, ns by which its host's clock is ahead of the first one's, where it is so far off
    that the hosts cannot have begun at such different times: an attempt begins together."""
    first, *others = sorted(ranks, key=lambda one: one.rank)
    begins = _begins_ns(first)
    found = {}
    for one in others:
        own = _begins_ns(one)
        known = [ns - begins[number] for number, ns in own.items() if number in begins]
        if one.host != first.host and known and abs(known[-1]) >= CLOCKS_APART_NS:
            found[one.rank] = known[-1]
    return found


def _begins_ns(rank: RankTimes) -> dict[int, int]:
    """Of each attempt when its first stage begins, Unix time."""
    return {n: one.first_ns for n, one in rank.attempts.items() if one.first_ns is not None}


def _span(ranks: Sequence[RankTimes], job: Job) -> tuple[int, int]:
    """The begin and the end of the job, Unix ns, by the clocks of these ranks."""
    begins = [one.first_ns for one in ranks]
    begins += [
        attempt.began_ns
        for one in ranks
        for attempt in one.attempts.values()
        if attempt.began_ns is not None
    ]
    ends = [one.last_ns + one.moved_ns for one in ranks]
    ends += [job.processes[one.rank].seen_ns for one in ranks if one.rank in job.processes]
    begins += [] if job.started_ns is None else [job.started_ns]
    ends += [] if job.ended_ns is None else [job.ended_ns]
    return min(begins), max(ends)


def _warm_up(sheets: Sequence[Sheet], number: int) -> int:
    """Of an attempt how many steps at its beginning are left out of what is usual."""
    series = [sheet.of_attempts[number].sum(1) for sheet in sheets if number in sheet.of_attempts]
    count = max(len(one) for one in series)
    if not count:
        return 0
    step_ns = np.full((len(series), count), np.nan)
    for row, one in enumerate(series):
        step_ns[row, : len(one)] = one
    return find_warmup(step_ns)


def _attempts(ranks: Sequence[RankTimes], vain: Mapping[int, tuple[int, int]]) -> list[Attempt]:
    found = []
    for number in attempt_numbers(ranks):
        steps = [one.steps for one in with_steps(ranks, number)]
        first = min((int(one[0]) for one in steps), default=None)
        last = max((int(one[-1]) for one in steps), default=None)
        count = sum(number in one.attempts for one in ranks)
        found.append(Attempt(number, first, last, vain.get(number), count))
    return found


def _culprits(ranks: Sequence[RankTimes], sheets: Sequence[Sheet], waits: Waits) -> list[Culprit]:
    order = sorted(waits.for_rank, key=lambda row: -waits.for_rank[row])[:CULPRITS_MAX]
    return [
        Culprit(ranks[row].rank, waits.for_rank[row], _longer_row(row, sheets, waits))
        for row in order
        if waits.for_rank[row]
    ]


def _longer_row(row: int, sheets: Sequence[Sheet], waits: Waits) -> str:
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
