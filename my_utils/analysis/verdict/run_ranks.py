"""Which of the ranks that were read are the run, and how its steps are numbered."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ...core.ranges import ranks_text
from .rank_cells import RankCells, numbered
from .rank_files import chosen
from .run_data import Integers, RunData

RANGES_NAMED = 6


@dataclass
class RunRanks:
    """read: all of them. kept: those of the run, by their numbers; older, gone: numbers of those of
    an older run, and of those that the last attempt has no more. shifts: what was added to the
    steps of each attempt of the run. lost: ranges of steps, the last one included, that are left
    out: some rank could not write rows of them."""

    read: list[RankCells]
    kept: list[RankCells]
    older: list[int]
    gone: list[int]
    shifts: dict[int, int]
    lost: list[tuple[int, int]]


class OwnAttempts(NamedTuple):
    """The attempts of a rank, which counts its own starts. spans: by its number of each from when
    to when it was, ns by the clock of its host. is_gone: the last attempt has it no more."""

    host: str
    spans: Mapping[int, tuple[int, int]]
    is_gone: bool = False


def ranks_of_run(read: list[RankCells]) -> RunRanks:
    """Chooses the ranks, and numbers the steps of those that are kept through all attempts."""
    kept, older = _without_older_runs([one for one in read if len(one.cells["step"])])
    kept, gone = _without_those_gone(kept)
    kept.sort(key=lambda one: one.metadata.rank)
    shifts = _number_through(kept)
    lost = _lost_steps(kept)
    for one in kept if lost else ():
        one.cells = chosen(one.cells, ~are_in(one.cells["step"], lost))
    kept = [one for one in kept if len(one.cells["step"])]
    return RunRanks(read, kept, older, gone, shifts, lost)


def without_like_ranks(ranks: RunRanks) -> RunRanks:
    """The same, of those kept only the lowest one, and each that did steps that none before it did.
    For what one rank says for all: the steps are numbered by all of them."""
    kept = []
    known: dict[int, tuple[int, int]] = {}  # of each shift the first and the last step
    for one in ranks.kept:
        has_more = False
        for number, (first, last, *_) in one.attempts.items():
            shift = one.shifts.get(number, 0)
            known_first, known_last = known.get(shift, (first + 1, first))
            has_more |= first < known_first or last > known_last
            known[shift] = min(first, known_first), max(last, known_last)
        kept += [one] if has_more else []
    return replace(ranks, kept=kept)


def are_in(steps: Integers, ranges: Iterable[tuple[int, int]]) -> npt.NDArray[np.bool_]:
    """Which of the steps are in one of the ranges, whose last one is included."""
    found = np.zeros(len(steps), bool)
    for first, last in ranges:
        found |= (steps >= first) & (steps <= last)
    return found


def _lost_steps(ranks: Iterable[RankCells]) -> list[tuple[int, int]]:
    """Those of which not all rows were written, in ranges that do not meet."""
    found: list[tuple[int, int]] = []
    ranges = (
        (one.first + shift, one.last + shift)
        for rank in ranks
        for one in rank.metadata.lost
        if one.first is not None and one.last is not None and one.attempt in rank.attempts
        for shift in (rank.shifts.get(one.attempt, 0),)
    )
    for first, last in sorted(ranges):
        if found and first <= found[-1][1] + 1:
            found[-1] = found[-1][0], max(found[-1][1], last)
        else:
            found.append((first, last))
    return found


def _without_older_runs(ranks: list[RankCells]) -> tuple[list[RankCells], list[int]]:
    """Without the ranks of which nothing of the last run is there. The lowest rank has taken part
    in it, as each run has that one."""
    if not ranks:
        return [], []
    first = min(ranks, key=lambda one: one.metadata.rank)
    begins: dict[str, list[int]] = {}
    for one in ranks:
        begins.setdefault(one.metadata.host, []).append(one.metadata.begin_ns)
    begin_of = {host: int(np.median(of_host)) for host, of_host in begins.items()}
    kept, older = [], []
    for one in ranks:
        if _is_of_the_run(one, first, begin_of[one.metadata.host]):
            kept.append(one)
        else:
            older.append(one.metadata.rank)
    return kept, older


def _is_of_the_run(one: RankCells, first: RankCells, begin_ns: int) -> bool:
    """begin_ns: of the run, by the clock of the rank's host; other hosts may have another time."""
    if one.run_id and first.run_id:
        return one.run_id == first.run_id
    if one.metadata.host == first.metadata.host:
        return one.metadata.end_ns >= begin_ns
    size = first.metadata.world_size
    is_of_another = one.metadata.rank < size != one.metadata.world_size > 0
    return not is_of_another and max(one.attempts) >= min(first.attempts)


def _without_those_gone(ranks: list[RankCells]) -> tuple[list[RankCells], list[int]]:
    """Without the ranks that the last attempt has no more, as it has fewer of them."""
    if not ranks:
        return [], []
    first = min(ranks, key=lambda one: one.metadata.rank)
    size = first.metadata.world_size or max(one.metadata.rank for one in ranks) + 1
    current = [one for one in ranks if one.metadata.rank < size]
    gone = [
        one.metadata.rank
        for one in ranks
        if one.metadata.rank >= size and _ended_before_the_last(one, first, current)
    ]
    return [one for one in ranks if one.metadata.rank not in gone], gone


def _ended_before_the_last(one: RankCells, first: RankCells, current: Sequence[RankCells]) -> bool:
    """Whether a rank is not in the last attempt of the first one. current: those that are. By the
    clock of the rank's host where one of them is there, too: each launcher counts its own restarts.
    """
    begins = [
        peer.attempts[max(peer.attempts)].begin_ns
        for peer in current
        if peer.metadata.host == one.metadata.host
    ]
    if begins:
        return one.metadata.end_ns < max(begins)
    return max(one.attempts) < max(first.attempts)


def _number_through(ranks: Sequence[RankCells]) -> dict[int, int]:
    """Numbers the attempts of all ranks alike, and the steps so that they rise through all of them.
    Returns what was added to the steps of each attempt."""
    counted = [one for one in ranks if one.is_automatic]
    numbers: list[dict[int, int]] = [{} for _ in counted]  # of a rank's own attempts, in the run
    shifts: dict[int, int] = {}
    end = 0
    for attempt, together in enumerate(attempts_together([*map(_own_attempts, counted)])):
        bounds = [counted[row].attempts[own] for row, own in together]
        shifts[attempt] = max(0, end - min(each.first for each in bounds)) if attempt else 0
        end = max(each.last for each in bounds) + shifts[attempt] + 1
        for row, own in together:
            numbers[row][own] = attempt
    for one, own_numbers in zip(counted, numbers, strict=True):
        one.shifts = {own: shifts[attempt] for own, attempt in own_numbers.items()}
        one.cells["step"] = numbered(one.cells["step"], one.shifts)
        one.counters.steps = numbered(one.counters.steps, one.shifts)
        one.begins_anew = numbered(one.begins_anew, one.shifts)
        one.notes = [replace(note, attempt=own_numbers.get(note.attempt, -1)) for note in one.notes]
    return shifts


def _own_attempts(rank: RankCells) -> OwnAttempts:
    spans = {own: (each.begin_ns, each.end_ns) for own, each in rank.attempts.items()}
    return OwnAttempts(rank.metadata.host, spans)


def attempts_together(ranks: Sequence[OwnAttempts]) -> Iterator[list[tuple[int, int]]]:
    """The attempts of the run, in order, each as places of ranks with their own numbers of it.

    Where all ranks have the same numbers, these say it. Else a rank has come later than others:
    attempts that overlap in time are one, but for those of one rank.

    >>> first, later = OwnAttempts("a", {1: (0, 9), 2: (20, 29)}), OwnAttempts("a", {1: (21, 28)})
    >>> list(attempts_together([first, later]))
    [[(0, 1)], [(0, 2), (1, 1)]]
    """
    numbers = {tuple(sorted(one.spans)) for one in ranks}
    if len(numbers) < 2:
        for own in itertools.chain(*numbers):
            yield [(row, own) for row in range(len(ranks))]
        return
    found: dict[int, int] = {}
    end_ns = 0
    for begin_ns, own_end_ns, row, own in sorted(_moments(ranks)):
        if found and (begin_ns > end_ns or row in found):
            yield [*found.items()]
            found = {}
        found[row] = own
        end_ns = max(end_ns, own_end_ns)
    if found:
        yield [*found.items()]


def _moments(ranks: Sequence[OwnAttempts]) -> Iterator[tuple[int, int, int, int]]:
    """Of each attempt when it began and ended, its rank's place and its number, by the clock of the
    host whose ranks have most attempts. What ran on another host at no time that one of these did
    is moved: the last attempts began together, or the first ones of a rank that is gone."""
    longest = max(ranks, key=lambda one: len(one.spans))
    known = [span for one in ranks if one.host == longest.host for span in one.spans.values()]
    for row, one in enumerate(ranks):
        shift_ns = 0
        if one.host != longest.host and any(
            not any(begin_ns <= last and first <= end_ns for first, last in known)
            for begin_ns, end_ns in one.spans.values()
        ):
            which = min if one.is_gone else max
            shift_ns = longest.spans[which(longest.spans)][0] - one.spans[which(one.spans)][0]
        for own, (begin_ns, end_ns) in one.spans.items():
            yield begin_ns + shift_ns, end_ns + shift_ns, row, own


def describe_problems(ranks: RunRanks, wanted: Collection[int]) -> Iterator[str]:
    """What is wrong with the files, a sentence each. wanted: the ranks that should have some."""
    if missing := {*wanted} - {one.metadata.rank for one in ranks.read}:
        yield f"{ranks_have(missing)} no files"
    if ranks.older:
        theirs = "its" if len(ranks.older) == 1 else "their"
        yield f"{_are(ranks.older)} left out: {theirs} files hold nothing of the last run"
    if ranks.gone:
        yield f"{_are(ranks.gone)} left out: the last attempt has fewer ranks"
    for name in dict.fromkeys(name for one in ranks.kept for name in one.metadata.programs):
        yield f"the steps of {name} are left out: another program ran after it"
    there = {one.metadata.rank for one in ranks.kept} | {*ranks.older, *ranks.gone}
    if empty := [one.metadata.rank for one in ranks.read if one.metadata.rank not in there]:
        yield f"{ranks_text(empty, RANGES_NAMED)}: no stage has ended in the files"
    for one in ranks.read:
        yield from (f"rank {one.metadata.rank}: {error}" for error in one.metadata.errors)
    yield from describe_losses(ranks)
    if found := [one.metadata.rank for one in ranks.kept if one.metadata.bad_rows]:
        yield f"{ranks_have(found)} rows that could not be understood"


def describe_losses(ranks: RunRanks) -> Iterator[str]:
    """A sentence where records of the run were lost."""
    others = {*ranks.older, *ranks.gone}
    lossy = [
        one.metadata
        for one in ranks.read
        if one.metadata.dropped and one.metadata.rank not in others
    ]
    if lossy:
        count = sum(one.dropped for one in lossy)
        numbers = [one.rank for one in lossy]
        text = f"{ranks_have(numbers)} {count} records that were lost during the run"
        steps = ", ".join(f"{first}:{last + 1}" for first, last in ranks.lost[:RANGES_NAMED])
        more = f" and {len(ranks.lost) - RANGES_NAMED} ranges more"
        steps += more if len(ranks.lost) > RANGES_NAMED else ""
        yield f"{text}: steps {steps} are left out" if steps else text


def ranks_have(ranks: Collection[int]) -> str:
    """
    >>> ranks_have([3]), ranks_have([0, 1, 2, 5])
    ('rank 3 has', 'ranks 0-2,5 have')
    """
    return f"{ranks_text(ranks, RANGES_NAMED)} {'has' if len(ranks) == 1 else 'have'}"


def missing_text(run: RunData) -> str:
    """Which ranks have no files."""
    return f"no files of {ranks_text(run.missing_ranks, RANGES_NAMED)} of {run.world_size}"


def _are(ranks: Collection[int]) -> str:
    return f"{ranks_text(ranks, RANGES_NAMED)} {'is' if len(ranks) == 1 else 'are'}"
