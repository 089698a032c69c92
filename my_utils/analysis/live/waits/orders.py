"""Whose order of calls differs from what the same calls were followed by elsewhere.

A program repeats itself, and ranks that do the same for other groups run the same one. So what
follows some calls is known from other steps and other ranks. A rank that has left out, added or
swapped a call, or made another one, has a call that has never followed the ones before it, where
something else always has.
"""

from __future__ import annotations

import functools
import re
from array import array
from bisect import bisect_left
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence

from ..flight_files import Dump
from .calls import Standstill
from .groups import UNNAMED, Group

BEFORE = 64  # calls that are examined before the one in which a rank waits, and after it
KNOWN_BEFORE = 256  # from which it is known what follows
OTHERS_MAX = 128  # ranks that those in question are compared with
CONTEXTS = (96, 48, 32, 24, 16, 12, 8, 6, 4, 3)  # calls before one: the longest known one counts
KNOWN_LEAST = 20  # calls before one: with fewer, a part of a step may be new
TIMES_KNOWN = 2  # as many calls are known before as are compared
SAME_BEFORE = 2  # calls of the same numbers, by which two ranks are at the same place
ALIKE = 2  # places that agree, against one that does not
CALLS_MAX = 64  # that are the newest of some ranks

_PEER = re.compile(r"(?:.*:)?(send|recv) (\d+)(?:->|<-)(\d+)")
_Class = tuple[tuple[str, int], ...]
_Word = tuple[str, str]  # role of the group and kind of the call
_GAP: _Word = ("", "")  # where the dump does not have the calls in between


class Orders:
    """The newest calls of ranks in their order."""

    def __init__(self, still: Standstill) -> None:
        self._still = still
        self._numbers: dict[_Word, int] = {_GAP: 0}
        self._classes: dict[_Class, int] = {}
        self._class_of: dict[int, int] = {}  # ranks of a class make the same calls
        self._sizes = Counter[int]()  # of classes
        self._made: dict[int, array[int]] = {}
        self._examined: dict[int, int] = {}  # from where on
        self._there: dict[int, list[tuple[object, ...]]] = {}  # calls before each, with numbers
        self._then: dict[tuple[object, ...], Counter[int]] = {}  # what followed there
        self._records: dict[tuple[object, ...], dict[int, list[int]]] = {}  # ranks, of each call
        self._called = Counter[tuple[int, int]]()  # by ranks that do the same, or by all: -1
        self._after: dict[int, dict[tuple[int, ...], Counter[int]]] = {n: {} for n in CONTEXTS}

    def odd(self, ranks: Collection[int]) -> list[int]:
        """Those of the ranks whose order nobody else has, where others agree on one."""
        others = [rank for rank in self._still.dumps if rank not in ranks]
        for rank in [*ranks, *others[:OTHERS_MAX]]:
            if rank in self._still.dumps and rank not in self._made:
                self._add(rank)
        known = [rank for rank in sorted(ranks) if rank in self._made]
        found = [rank for rank in known if self._is_odd(rank)]
        return found or [rank for rank in known if self._is_shifted(rank)]

    def _add(self, rank: int) -> None:
        dump, stand = self._still.dumps[rank], self._still.stands.get(rank)
        records = dump.order.records
        at = bisect_left(records, stand.call.record) if stand else len(records)
        first = max(0, at - KNOWN_BEFORE)
        calls = [*_calls(dump, self._still.groups, first, min(len(records), at + BEFORE))]
        numbers = (self._numbers.setdefault(word, len(self._numbers)) for word, _ in calls)
        made = self._made[rank] = array("I", numbers)
        self._examined[rank] = max(0, at - first - BEFORE)
        places = self._still.places.get(rank, ())
        alike = self._class_of[rank] = self._classes.setdefault(places, len(self._classes))
        self._sizes[alike] += 1
        self._called.update((which, call) for call in made for which in (alike, -1))
        for place in range(max(0, len(records) - BEFORE), len(records)):
            _, *call, record = _call_at(self._still, rank, place)
            self._records.setdefault(tuple(call), {}).setdefault(record, []).append(rank)
        for length, after in self._after.items():
            for place in range(length, len(made)):
                after.setdefault(self._before(rank, place, length), Counter())[made[place]] += 1
        self._add_what_followed(rank, [number for _, number in calls])

    def _add_what_followed(self, rank: int, numbers: Sequence[int]) -> None:
        """numbers: of the rank's calls within their groups."""
        made, alike = self._made[rank], self._class_of[rank]
        self._there[rank] = [()] * min(SAME_BEFORE, len(made))
        for place in range(SAME_BEFORE, len(made)):
            before = slice(place - SAME_BEFORE, place)
            here = (alike, *made[before], *numbers[before])
            self._there[rank].append(here)
            self._then.setdefault(here, Counter())[made[place]] += 1

    def _before(self, rank: int, place: int, length: int) -> tuple[int, ...]:
        """The calls before one, and which ranks make the same ones."""
        return (self._class_of[rank], *self._made[rank][place - length : place])

    def _is_shifted(self, rank: int) -> bool:
        """In a dump of nothing but some calls that have not ended: whether each of them has another
        running number than on those that do the same, which agree."""
        order, pending = self._still.dumps[rank].order, self._still.pending[rank]
        if len(pending) < len(order.records) or len(order.records) > BEFORE:
            return False
        agreed = [self._agreed(rank, at) for at in range(len(order.records))]
        return any(agreed) and all(one is None or one for one in agreed)

    def _agreed(self, rank: int, at: int) -> bool | None:
        """Whether it alone has the call under its number, and each other rank agrees with one more;
        None where only it has the call."""
        _, *call, record = _call_at(self._still, rank, at)
        numbers = self._records[tuple(call)]
        others = [ranks for other, ranks in numbers.items() if other != record]
        if len(numbers[record]) > 1:
            return False
        if not others:
            return None
        alike = {other for ranks in others for other in ranks}
        return min(map(len, others)) >= ALIKE and self._has_mates(rank, alike)

    def _has_mates(self, rank: int, others: Collection[int]) -> bool:
        """Whether the others make the same calls, as far as the groups say it: whichever of the
        rank's may be a pipeline, one of them is in the same stage."""
        stages = self._stages(rank)
        there = {stage for other in others for stage in self._stages(other)}
        return bool(self._still.dumps[rank].members) and stages <= there

    def _stages(self, rank: int) -> set[tuple[str, int]]:
        """The places of a rank in groups that may be pipelines: no collective is known of them."""
        dump = self._still.dumps[rank]
        kinds = {name: _kind_of_group(name, dump.descriptions[name]) for name in dump.members}
        return {
            (kind, dump.members[name].index(rank))
            for name, kind in kinds.items()
            if kind not in self._without_stages and rank in dump.members[name]
        }

    @functools.cached_property
    def _without_stages(self) -> frozenset[str]:
        groups = self._still.groups.values()
        kinds = (_kind_of_group(one.name, one.description) for one in groups if not one.has_peers)
        return frozenset(["", "default_pg", *kinds])

    def _is_odd(self, rank: int) -> bool:
        places = range(self._examined[rank], len(self._made[rank]))
        return any(self._is_new(rank, place) for place in places)

    def _is_new(self, rank: int, place: int) -> bool:
        """Not if it has followed the same calls elsewhere; the longest of them count that others
        have made, and that are no loop, of which nobody knows how often it goes round."""
        call = self._made[rank][place]
        then = self._then.get(self._there[rank][place], Counter())
        if call and len(then) == 2 and then[call] == 1 and then.total() > ALIKE and not then[0]:
            return True
        least = 0 if self._still.dumps[rank].is_whole else KNOWN_LEAST
        for length, after in self._after.items():
            if max(least, length * TIMES_KNOWN) > place or not call:
                continue
            before = self._before(rank, place, length)
            if 0 in before[1:]:
                continue
            known = after[before]
            if known[call] > 1:
                return False
            if known.total() - known[call] <= ALIKE:
                continue
            is_loop = _is_loop(before[1:])
            if then.total() == then[call] and (is_loop or self._sizes[before[0]] > 1):
                return False  # none that does the same has been here, so the program may say it
            if not is_loop:
                # What those that do the same have never called is odd only if nobody has.
                is_known = self._called[before[0], call] > 1 or self._called[-1, call] == 1
                return len(known) == 2 and is_known
        return False


def _kind_of_group(name: str, description: str) -> str:
    return name if description in UNNAMED else description


def _is_loop(calls: Sequence[int]) -> bool:
    return any(calls[n:] == calls[:-n] for n in range(1, (len(calls) + 1) // 2 + 1))


def _calls(
    dump: Dump, groups: Mapping[tuple[int, str], Group], first: int, end: int
) -> Iterator[tuple[_Word, int]]:
    """With their numbers within their groups."""
    order = dump.order
    words = [_word(groups.get((dump.rank, name)), name, kind) for name, kind in order.words]
    before = None
    for at in range(first, end):
        record = order.records[at]
        if before is not None and record != before + 1:
            yield _GAP, 0
        yield words[order.codes[at]], order.numbers[at]
        before = record


def _word(group: Group | None, name: str, kind: str) -> _Word:
    """Role of the group and kind of the call: `send 1->2` is `send 1 further`, which is the same
    for all ranks of a pipeline or a ring."""
    if group is None:
        return name, kind
    match = _PEER.fullmatch(kind)
    if match is None:
        return group.role, kind
    further = (int(match[3]) - int(match[2])) % max(len(group.members), 1)
    return group.role, f"{match[1]} {further} further"


_Call = tuple[_Class, _Word, int, int]  # of ranks that do the same: its numbers


def stopped_early(still: Standstill, ranks: Sequence[int]) -> list[int]:
    """Those of the ranks whose newest call is one that the others that do the same, and wait in it
    as well, have gone on from by the same next call, and further than they. So what they wait for
    is not what keeps them from calling on."""
    newest: dict[_Call, list[int]] = {}
    for rank in ranks:
        records = still.dumps[rank].order.records
        if records and records[-1] in still.pending[rank]:
            newest.setdefault(_call_at(still, rank, len(records) - 1), []).append(rank)
    found = []
    for call, stopped in sorted(newest.items(), key=lambda item: len(item[1]))[:CALLS_MAX]:
        after = {rank: _next_call(still, rank, call) for rank in ranks if rank not in stopped}
        after = {rank: following for rank, following in after.items() if following is not None}
        latest = max((still.stands[rank].call.record for rank in after), default=0)
        stopped = [rank for rank in stopped if still.stands[rank].call.record >= latest]
        agree = len(set(after.values())) == 1
        if agree and len(after) >= max(ALIKE, 2 * len(stopped)):
            least = min(len(still.pending[rank]) for rank in after)
            found += [rank for rank in stopped if len(still.pending[rank]) < least]
    return sorted(found)


def _next_call(still: Standstill, rank: int, call: _Call) -> _Word | None:
    """What the rank called after that one, where it is pending, too."""
    order, (*_, record) = still.dumps[rank].order, call
    at = bisect_left(order.records, record)
    if at + 1 >= len(order.records) or record not in still.pending[rank]:
        return None
    return _word_at(still, rank, at + 1) if _call_at(still, rank, at) == call else None


def _call_at(still: Standstill, rank: int, at: int) -> _Call:
    order = still.dumps[rank].order
    places = still.places.get(rank, ())
    return places, _word_at(still, rank, at), order.numbers[at], order.records[at]


def _word_at(still: Standstill, rank: int, at: int) -> _Word:
    order = still.dumps[rank].order
    name, kind = order.words[order.codes[at]]
    return _word(still.groups.get((rank, name)), name, kind)


def others_than(kind: str | None, kinds: Mapping[str, Sequence[int]]) -> list[int]:
    """The ranks that called something else than that, where somebody called it."""
    if kind not in kinds:
        return []
    return sorted(rank for other, ranks in kinds.items() if other != kind for rank in ranks)


def most_common(kinds: Mapping[str, Sequence[int]]) -> str | None:
    """What more than half of all ranks called."""
    counts = Counter({kind: len(ranks) for kind, ranks in kinds.items()})
    first = counts.most_common(1)
    return first[0][0] if first and 2 * first[0][1] > counts.total() else None
