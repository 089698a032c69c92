"""What `my_utils run` recorded: stages, and the collectives inside them.

A rank does its stages one after the other. A collective splits the stage that it is in: what is
before it and after it is the rank's own work. Backward of DDP ends in a meeting. Times are those of
the host, so runs on a GPU are not read.
"""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import zip_longest

import numpy as np

from ..verdict.recorded_rank import Call, RecordedRank
from .operations import END, RECEIVE, SEND, TOGETHER, Ints, Operations, Words, number_rows

SIDES = {"send": SEND, "recv": RECEIVE}
AT_ONCE_NS = 500_000  # from a call to its wait: so soon the caller blocks
AT_ONCE_SHARE = 0.95  # of the calls of a name, that must do so
UNAWAITED_NS = 50_000  # a shorter wait finds that all has come
LANES = 1 << 20  # from here on, one a group, and one a direction to another rank: what nobody waits
# for at once
STEPS_MIN = 4


def operations_of_run(ranks: Iterable[RecordedRank]) -> Operations | None:
    """The operations of a run; None where no rank sends to another one, and no collective was
    recorded inside a forward or a backward. Steps are those that all ranks recorded."""
    found = sorted(ranks, key=lambda one: one.number)
    if len(found) < 2 or not any(one.meets_inside for one in found):
        return None
    steps = _common_steps(found)
    if len(steps) < STEPS_MIN:
        return None
    at_once = _blocking(found)
    names, meetings = Words(), Words()
    columns = [_make_columns(one, steps, at_once, names, meetings) for one in found]
    joined = [np.concatenate(parts) for parts in zip(*columns, strict=True)]
    rank, lane, step, name, begin, end, meeting, side, called = joined
    _end_unawaited(begin, end, meeting, called)
    stages = {one.number: one.stage for one in found if one.stage is not None}
    hosts = {one.number: one.host for one in found if one.host}
    return Operations(
        rank, lane, step, name, begin, end, meeting, side, tuple(names), stages, hosts
    )


def _make_columns(
    rank: RecordedRank, steps: Ints, at_once: dict[str, bool], names: Words, meetings: Words
) -> list[Ints]:
    """The columns of its operations in these steps."""
    rows = _Rows(rank.number, names)
    wanted = set(steps.tolist())
    turns: dict[tuple[int, str, str], int] = defaultdict(int)
    calls = iter(rank.calls)
    call = next(calls, None)
    waits: list[tuple[int, int]] = []
    names_of = (rank.rows[name].tolist() for name in ("step", "path", "begin_ns", "end_ns"))
    stages = list(zip(*names_of, strict=True))
    for at, (step, path, begin, end) in enumerate(stages):
        stage = rank.paths[path]
        waits = [one for one in waits if one[1] > begin]
        pieces = _Pieces(rows, step, stage, begin, waits)
        until = stages[at + 1][2] if at + 1 < len(stages) else end
        while call is not None and call.begin_ns < until:
            turn = turns[step, call.kind, call.place]
            turns[step, call.kind, call.place] += 1
            if step in wanted:
                meeting, side = _meeting(rank, call, step, turn, meetings)
                pieces.add(call, meeting, side, at_once.get(call.name, True))
            call = next(calls, None)
        if step in wanted:
            last = -1
            if stage == "backward" and rank.reduces_with is not None:
                last = meetings[step, "backward", rank.reduces_with, turns[step, stage, ""]]
                turns[step, stage, ""] += 1
            pieces.finish(end, last)
    for step in wanted:
        if step + 1 in rank.starts:
            end = rank.starts[step + 1]
            rows.add(0, step, END, end, end, -1, TOGETHER)
    return rows.columns()


def _meeting(
    rank: RecordedRank, call: Call, step: int, turn: int, meetings: Words
) -> tuple[int, int]:
    if call.kind not in SIDES:
        group = rank.groups.get(call.place, call.place)
        return meetings[step, call.kind, group, turn], TOGETHER
    if not call.place.isdigit():
        return -1, TOGETHER
    pair = (rank.number, int(call.place))
    pair = pair if call.kind == "send" else pair[::-1]
    return meetings[step, "pair", pair, turn], SIDES[call.kind]


class _Pieces:
    """A stage, taken apart by the collectives in it and after it."""

    def __init__(
        self, rows: _Rows, step: int, stage: str, begin_ns: int, waits: list[tuple[int, int]]
    ) -> None:
        """waits: those that are not over, of earlier calls, too; more are added."""
        self._rows, self._step, self._stage = rows, step, stage
        self._from = begin_ns
        self._waits = waits

    def add(self, call: Call, meeting: int, side: int, at_once: bool) -> None:
        wait = call.wait_ns
        end = call.end_ns if wait is None else wait[1]
        if at_once or wait is None:
            self._waits.append((call.begin_ns, end))
            self._rows.add(0, self._step, call.name, call.begin_ns, end, meeting, side)
        else:
            self._waits.append(wait)
            lane = LANES + self._rows.lanes[call.kind if call.kind in SIDES else "", call.place]
            ended = call.end_ns if wait[1] - wait[0] < UNAWAITED_NS else -1
            self._rows.add(lane, self._step, call.name, call.begin_ns, end, meeting, side, ended)

    def finish(self, end_ns: int, meeting: int) -> None:
        """meeting: in which the stage ends, -1 for none."""
        begin = self._from
        for low, high in sorted(self._waits):
            if low >= end_ns:
                break
            if low > begin:
                self._own(begin, low, -1)
            begin = max(begin, high)
        if begin < end_ns or meeting >= 0:
            self._own(min(begin, end_ns), end_ns, meeting)

    def _own(self, begin_ns: int, end_ns: int, meeting: int) -> None:
        self._rows.add(0, self._step, self._stage, begin_ns, end_ns, meeting, TOGETHER)


class _Rows:
    """Operations as they are found."""

    def __init__(self, rank: int, names: Words) -> None:
        self._rank, self._names = rank, names
        self._rows: list[tuple[int, ...]] = []
        self.lanes = Words()

    def add(
        self, lane: int, step: int, name: str, begin: int, end: int, meeting: int, side: int,
        called: int = -1,
    ) -> None:  # fmt: skip
        """called: when the call returned whose end is unknown, as its wait found it over."""
        number = self._names[name]
        self._rows.append((self._rank, lane, step, number, begin, end, meeting, side, called))

    def columns(self) -> list[Ints]:
        """In the order of `Operations`, and `called`."""
        return list(np.array(self._rows, np.int64).reshape(-1, 9).T)


def _end_unawaited(begin: Ints, end: Ints, meeting: Ints, called: Ints) -> None:
    """A collective that was over when it was waited for ended before: as soon after the last member
    had come as that of those that waited. Changes `end`."""
    met = np.flatnonzero(meeting >= 0)
    number, count = number_rows(meeting[met])
    last = np.full(count, np.iinfo(np.int64).min)
    np.maximum.at(last, number, begin[met])
    stay = np.where(called[met] < 0, end[met] - last[number], np.iinfo(np.int64).max)
    shortest = np.full(count, np.iinfo(np.int64).max)
    np.minimum.at(shortest, number, stay)
    shortest[shortest == np.iinfo(np.int64).max] = 0
    early = called[met] >= 0
    at = met[early]
    ended = np.maximum(last + np.maximum(shortest, 0), 0)[number[early]]
    end[at] = np.clip(ended, called[at], end[at])


def _common_steps(ranks: Sequence[RecordedRank]) -> Ints:
    """The steps that all ranks have, and in which all that recorded collectives did so."""
    found: list[Ints] = []
    for one in ranks:
        own = np.array(list(one.starts), np.int64)
        if one.calls:
            begins = np.array(list(one.starts.values()))
            at = np.searchsorted(begins, [call.begin_ns for call in one.calls], "right") - 1
            own = own[np.bincount(at[at >= 0], minlength=len(own)) > 0]
        found.append(own)
    return functools.reduce(np.intersect1d, found)


def _blocking(ranks: Sequence[RecordedRank]) -> dict[str, bool]:
    """By name, whether the callers wait at once, nearly always and on all ranks, with no other call
    between: then it is one operation of the caller."""
    soon: dict[str, list[bool]] = defaultdict(list)
    for one in ranks:
        for call, after in zip_longest(one.calls, one.calls[1:]):
            if call.wait_ns is not None:
                wait = call.wait_ns[0]
                alone = after is None or after.begin_ns >= wait
                soon[call.name].append(alone and wait - call.end_ns <= AT_ONCE_NS)
    return {name: sum(those) >= AT_ONCE_SHARE * len(those) for name, those in soon.items()}
