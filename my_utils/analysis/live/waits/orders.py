"""Whose calls differ from those of all others that should make the same ones.

Ranks that do the same for other groups make the same calls in the same order, so that the running
number of a call is the same on them. A rank that has left out, added or swapped calls has other
numbers from there on, and one that made another call has it where the others have theirs.
"""

from __future__ import annotations

import itertools
import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import repeat
from typing import NamedTuple

from ..flight_files import Dump
from .calls import Standstill
from .groups import Group

BEFORE = 64  # calls that are compared before the one in which a rank waits, and after it
CALLS_MAX = 64  # that are the newest of some ranks
OTHERS_MAX = 512  # ranks that those in question are compared with
CONTEXT = 3  # calls before one, by which it is known what should follow
ALIKE = 2  # ranks that agree, against one that does not

_PEER = re.compile(r"(?:.*:)?(send|recv) (\d+)(?:->|<-)(\d+)")
_PEER_CALLS = "send", "recv"
_What = tuple[str, int, str]  # role of the group, number within it, kind


class _Made(NamedTuple):
    """A call as a rank made it."""

    what: _What
    record: int


class Orders:
    """The calls of ranks in their order, near the call in which each of them waits: of those in
    question and of some others."""

    def __init__(self, ranks: Sequence[int], still: Standstill) -> None:
        self._accused = frozenset(ranks)
        others = [rank for rank in still.dumps if rank not in self._accused]
        self._made: dict[int, dict[int, _Made]] = {}
        self._records: dict[_What, dict[int, list[int]]] = {}
        self._ranks: dict[_Made, list[int]] = {}
        self._known: dict[tuple[_Made, int], dict[_What, list[int]]] = {}
        self._pending = still.pending
        self._is_missing_some = any(node.unknown for node in still.nodes.values())
        self._after: dict[tuple[tuple[str, str], ...], Counter[tuple[str, str]]] = {}
        for rank in [*ranks, *others[:OTHERS_MAX]]:
            if rank in still.dumps:
                self._add(rank, still)
        for rank, calls in self._made.items():
            for record, call in calls.items():
                after = self._after.setdefault(self._before(rank, record), Counter())
                after[call.what[0], call.what[2]] += 1

    def _add(self, rank: int, still: Standstill) -> None:
        own = self._made[rank] = {}
        stand = still.stands.get(rank)
        for call in _made(still.dumps[rank], still.groups, stand.call.record if stand else None):
            own[call.record] = call
            self._records.setdefault(call.what, {}).setdefault(call.record, []).append(rank)
            self._ranks.setdefault(call, []).append(rank)

    def odd(self) -> list[int]:
        """Those of the ranks whose order of calls nobody else has, where others agree on one, among
        them another of the ranks.

        First by what they themselves and others have done elsewhere. Where that does not tell and
        no dump is missing, so that each rank should have a fellow, by what others do here.
        """
        known = [rank for rank in sorted(self._accused) if rank in self._made]
        found = [rank for rank in known if any(map(self._is_new, repeat(rank), self._calls(rank)))]
        if found or self._is_missing_some:
            return found
        return [rank for rank in known if any(map(self._is_odd, repeat(rank), self._calls(rank)))]

    def _calls(self, rank: int) -> Iterable[_Made]:
        return self._made[rank].values()

    def _is_new(self, rank: int, call: _Made) -> bool:
        """Whether this call has never followed elsewhere where the same ones were made before it,
        but what others do here has."""
        after = self._after[self._before(rank, call.record)]
        if after[call.what[0], call.what[2]] != 1:
            return False
        agreed = self._agreed(rank, call)
        return agreed is not None and after[agreed[0][0], agreed[0][2]] >= ALIKE

    def _is_odd(self, rank: int, call: _Made) -> bool:
        agreed = self._agreed(rank, call)
        return (agreed is not None and len(agreed[1]) >= ALIKE) or self._is_alone(rank, call)

    def _before(self, rank: int, record: int) -> tuple[tuple[str, str], ...]:
        """The calls before one, without their numbers."""
        made = self._made[rank]
        at = [made[r].what for r in range(record - CONTEXT, record) if r in made]
        return tuple((role, kind) for role, _, kind in at)

    def _is_alone(self, rank: int, call: _Made) -> bool:
        """Whether the rank alone has a collective that is pending under its running number, each
        other rank with it agrees with one more, and none has its calls beside this one where it has
        them. (Sends and receives have other numbers on each stage of a pipeline.)"""
        if call.record not in self._pending[rank] or call.what[2].startswith(_PEER_CALLS):
            return False
        records = self._records[call.what]
        others = [ranks for record, ranks in records.items() if record != call.record]
        if len(records[call.record]) > 1 or not others or min(map(len, others)) < ALIKE:
            return False
        if all(self._accused.isdisjoint(ranks) for ranks in others):
            return False
        return not any(self._has_fellow(rank, call.record + step) for step in (-1, 1))

    def _agreed(self, rank: int, call: _Made) -> tuple[_What, list[int]] | None:
        """Another call on which those agree that have made the same one before this one, or after
        it where there is none before; and these ranks. None where there is no such call."""
        made = self._made[rank]
        beside = made.get(call.record - 1) or made.get(call.record + 1)
        if beside is None:
            return None
        at = self._beside(beside, call.record)
        if len(at) != 2 or at[call.what] != [rank]:
            return None
        ((what, ranks),) = (item for item in at.items() if item[0] != call.what)
        return None if self._accused.isdisjoint(ranks) else (what, ranks)

    def _beside(self, call: _Made, record: int) -> dict[_What, list[int]]:
        """What the ranks that made a call have under another running number."""
        known = self._known.get((call, record))
        if known is None:
            known = self._known[call, record] = {}
            for rank in self._ranks[call]:
                if at := self._made[rank].get(record):
                    known.setdefault(at.what, []).append(rank)
        return known

    def _has_fellow(self, rank: int, record: int) -> bool:
        """Whether another rank has the same call under that running number."""
        call = self._made[rank].get(record)
        return call is not None and len(self._ranks[call]) > 1


def _made(
    dump: Dump, groups: Mapping[tuple[int, str], Group], record: int | None
) -> Iterator[_Made]:
    order = dump.order
    words = [_word(groups.get((dump.rank, name)), name, kind) for name, kind in order.words]
    stand = len(order.records) if record is None else order.records.index(record)
    for at in range(max(0, stand - BEFORE), min(len(order.records), stand + BEFORE)):
        role, kind = words[order.codes[at]]
        yield _Made((role, order.numbers[at], kind), order.records[at])


def _word(group: Group | None, name: str, kind: str) -> tuple[str, str]:
    """Role of the group and kind of the call: `send 1->2` is `send 1 further`, which is the same
    for all ranks of a pipeline or a ring."""
    if group is None:
        return name, kind
    match = _PEER.fullmatch(kind)
    if match is None:
        return group.role, kind
    further = (int(match[3]) - int(match[2])) % max(len(group.members), 1)
    return group.role, f"{match[1]} {further} further"


def stopped_early(still: Standstill, ranks: Sequence[int]) -> list[int]:
    """Those of the ranks whose newest call is one that others, which wait in it as well, have gone
    on from by the same next call, and further than they. So what they wait for is not what keeps
    them from calling on."""
    newest: dict[_Made, list[int]] = {}
    for rank in ranks:
        call = _call_at(still, rank, None)
        if call is not None and call.record in still.pending[rank]:
            newest.setdefault(call, []).append(rank)
    found = []
    for call, stopped in sorted(newest.items(), key=lambda item: len(item[1]))[:CALLS_MAX]:
        after = {
            rank: _call_at(still, rank, call.record + 1)
            for rank in ranks
            if rank not in stopped
            and call.record in still.pending[rank]
            and _call_at(still, rank, call.record) == call
        }
        agree = len(set(after.values())) == 1 and None not in after.values()
        if agree and len(after) >= max(ALIKE, 2 * len(stopped)):
            least = min(len(still.pending[rank]) for rank in after)
            found += [rank for rank in stopped if len(still.pending[rank]) < least]
    return sorted(found)


def _call_at(still: Standstill, rank: int, record: int | None) -> _Made | None:
    """The call of a rank under a running number, or its newest one."""
    order = still.dumps[rank].order
    at = len(order.records) - 1 if record is None else bisect_left(order.records, record)
    if not 0 <= at < len(order.records) or record not in (None, order.records[at]):
        return None
    name, kind = order.words[order.codes[at]]
    role, kind = _word(still.groups.get((rank, name)), name, kind)
    return _Made((role, order.numbers[at], kind), order.records[at])


def others_than(kind: str | None, kinds: Mapping[str, Sequence[int]]) -> list[int]:
    """The ranks that called something else than that, where somebody called it."""
    if kind not in kinds:
        return []
    return sorted(rank for other, ranks in kinds.items() if other != kind for rank in ranks)


def most_common(all_kinds: Iterable[Mapping[str, Sequence[int]]]) -> str | None:
    """What more than half of all ranks called."""
    counts = Counter[str]()
    for kinds in all_kinds:
        counts.update({kind: len(ranks) for kind, ranks in kinds.items()})
    first = counts.most_common(1)
    return first[0][0] if first and 2 * first[0][1] > counts.total() else None


def familiar(kinds: Iterable[str], elsewhere: Iterable[str], has_ended: bool) -> str | None:
    """The one of the kinds of an operation that differs from the others in a dtype or a size which
    calls elsewhere have as well; None where that is so of several, or of none.

    has_ended: whether the calls elsewhere are of several steps. Else sizes tell nothing, as each
    call of a step may have another.

    >>> familiar(["all_reduce of 8 Float", "all_reduce of 8 Double"], ["gather of 2 Float"], False)
    'all_reduce of 8 Float'
    """
    ours = {kind: set(kind.split()) for kind in kinds}
    shared = set.intersection(*ours.values())
    differing = {kind: own - shared for kind, own in ours.items()}
    if len({kind.partition(" ")[0] for kind in ours}) > 1:
        return None
    if not has_ended and any(word.isdecimal() for own in differing.values() for word in own):
        return None
    words = {word for kind in elsewhere for word in kind.split()}
    known = [kind for kind, own in differing.items() if own <= words]
    return known[0] if len(known) == 1 else None


def kinds_elsewhere(group: Group, seq: int, dumps: Iterable[Dump]) -> set[str]:
    """The kinds of all calls but those of one number in a group."""
    found: set[str] = set()
    for dump in itertools.islice(dumps, OTHERS_MAX):
        order = dump.order
        at = {code for code, (name, _) in enumerate(order.words) if name == group.name}
        made = {
            code
            for code, number in zip(order.codes, order.numbers, strict=True)
            if number != seq or code not in at
        }
        found.update(order.words[code][1] for code in made)
    return found
