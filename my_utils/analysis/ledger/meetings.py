"""Splits what a rank stays in a meeting into what the meeting takes and what the rank waits.

The rank with the shortest stay came last: all others wait for it. So a meeting takes as long as the
shortest stay, and what a rank stays longer is its wait. Durations alone are compared, for each rank
may have another clock. The k-th meeting of a rank in an attempt is the k-th of the others, whatever
step it is in. A send and the receive of it are a meeting of two ranks.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from ...core.ranges import parse_members
from .peers import RECEIVE, SEND
from .rank_times import PIPELINE, RankTimes, Stays, attempt_numbers
from .rows import PLACES, WAITING
from .sweep import Integers

_IN_A_STEP_MAX = 1 << 20

Sheets = Sequence[dict[int, Integers]]  # of each rank, by attempt: step × row


@dataclass
class Waits:
    """for_rank: by a rank's place, how long the others waited for it, ns. steps: of these meetings
    the places of their steps, by attempt."""

    for_rank: dict[int, int] = field(default_factory=dict)
    steps: dict[int, dict[int, set[int]]] = field(default_factory=dict)

    def add(self, row: int, number: int, wait_ns: int, steps: set[int]) -> None:
        self.for_rank[row] = self.for_rank.get(row, 0) + wait_ns
        self.steps.setdefault(row, {}).setdefault(number, set()).update(steps)


class _There(NamedTuple):
    """A rank, by its place, in a stage that has others in it. steps: of its attempt."""

    row: int
    stays: Stays
    steps: Integers


def split_waits(
    ranks: Sequence[RankTimes], sheets: Sheets, inferred: Iterable[tuple[str, Collection[int]]]
) -> Waits:
    """Moves in the sheets what ranks wait from the row of the stage to that of waiting. inferred:
    stages, and the ranks that meet in them, where the run did not record any."""
    waits = Waits()
    groups = _groups(ranks) if any(one.meetings for one in ranks) else _inferred(ranks, inferred)
    for stage, rows in groups:
        for number in attempt_numbers(ranks[row] for row in rows):
            _split(ranks, sheets, stage, rows, number, waits)
    _split_pairs(ranks, sheets, waits)
    return waits


def _inferred(
    ranks: Sequence[RankTimes], inferred: Iterable[tuple[str, Collection[int]]]
) -> Iterator[tuple[str, list[int]]]:
    for stage, members in inferred:
        yield stage, [row for row, one in enumerate(ranks) if one.rank in members]


def _groups(ranks: Sequence[RankTimes]) -> Iterator[tuple[str, list[int]]]:
    """Each stage with the places of the ranks that meet in it. A rank is in one group of a stage:
    the largest. A stage with a pipeline's sends and receives is left out: each rank has others."""
    sent = {stage for one in ranks for stage, _, kind in one.meetings if kind == PIPELINE}
    places = {one.rank: row for row, one in enumerate(ranks)}
    members: dict[tuple[str, str], list[int]] = {}
    for one in ranks:
        for stage, text, kind in one.meetings:
            if kind != "none" and stage not in sent and (stage, text) not in members:
                numbers = parse_members(text) if text else tuple(places)
                members[stage, text] = [places[number] for number in numbers if number in places]
    taken: dict[str, set[int]] = defaultdict(set)
    for (stage, _), rows in sorted(members.items(), key=lambda item: -len(item[1])):
        free = [row for row in rows if row not in taken[stage]]
        taken[stage].update(free)
        if len(free) > 1:
            yield stage, free


def _split(
    ranks: Sequence[RankTimes], sheets: Sheets, stage: str, rows: Sequence[int], number: int,
    waits: Waits,
) -> None:  # fmt: skip
    there = []
    for row in rows:
        attempt = ranks[row].attempts.get(number)
        if attempt is not None and stage in attempt.stays:
            stays = attempt.stays[stage]
            there += [_There(row, stays, attempt.steps)] if len(stays.place) else []
    _move_waits(sheets, there, number, waits)


def _split_pairs(ranks: Sequence[RankTimes], sheets: Sheets, waits: Waits) -> None:
    """Each send with the receive of it."""
    places = {one.rank: row for row, one in enumerate(ranks)}
    for row, one in enumerate(ranks):
        for number, attempt in one.attempts.items():
            for (kind, peer), sends in attempt.peers.items():
                if kind != SEND or peer not in places:
                    continue
                to = places[peer]
                other = ranks[to].attempts.get(number)
                if other is not None and (RECEIVE, one.rank) in other.peers:
                    receives = other.peers[RECEIVE, one.rank]
                    pair = [_There(row, sends, attempt.steps), _There(to, receives, other.steps)]
                    _move_waits(sheets, pair, number, waits)


def _move_waits(sheets: Sheets, there: Sequence[_There], number: int, waits: Waits) -> None:
    """Of those that meet each other in an attempt."""
    if len(there) < 2:
        return
    kept = _together(there)
    own = np.stack([one.stays.own_ns[at] for one, at in zip(there, kept, strict=True)])
    wait = own - own.min(0)
    for one, at, waited in zip(there, kept, wait, strict=True):
        sheet, place = sheets[one.row][number], one.stays.place[at]
        np.subtract.at(sheet, (place, one.stays.row[at]), waited)
        np.add.at(sheet[:, PLACES[WAITING]], place, waited)
    last, waited = own.argmin(0), wait.sum(0)
    for at_there in np.unique(last).tolist():
        one, mine = there[at_there], last == at_there
        steps = set(one.stays.place[kept[at_there]][mine].tolist())
        waits.add(one.row, number, int(waited[mine].sum()), steps)


def _together(there: Sequence[_There]) -> list[Integers]:
    """Of each rank the places of its stays, so that each is of the same meeting as those of the
    others. Where some rank has fewer, those are left out that it has not, step by step."""
    if len({len(one.stays.place) for one in there}) == 1:
        return [np.arange(len(one.stays.place)) for one in there]
    known = np.unique(np.concatenate([one.steps for one in there]))
    keys = [_keys(one.stays, np.searchsorted(known, one.steps)) for one in there]
    common = keys[0]
    for one in keys[1:]:
        common = np.intersect1d(common, one, assume_unique=True)
    return [np.flatnonzero(np.isin(one, common)) for one in keys]


def _keys(stays: Stays, steps: Integers) -> Integers:
    """A number for each: of its step, and of its place among those of the step. steps: the places
    of the rank's steps among those of all ranks."""
    order = np.argsort(stays.place, kind="stable")
    ordered = stays.place[order]
    firsts = np.searchsorted(ordered, ordered)
    count = np.empty(len(ordered), np.int64)
    count[order] = np.arange(len(ordered)) - firsts
    keys: Integers = steps[stays.place] * _IN_A_STEP_MAX + count
    return keys
