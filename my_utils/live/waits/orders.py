"""Whose order of calls nobody else has.

Ranks that do the same for other groups make the same calls in the same order, so that the running
number of a call is the same on them. A rank that has left out, added or swapped calls has other
numbers from there on, and one that made another call has it where the others have theirs.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from ..flight_files import Dump
from .groups import Group

BEFORE = 64  # calls that are compared before the one in which a rank stands, and after it
OTHERS_MAX = 512  # ranks that are compared with the accused
ALIKE = 2  # ranks that agree, against one that does not

_Position = tuple[str, int]  # role of the group and number within it
_PEER = re.compile(r"(?:.*:)?(send|recv) (\d+)(?:->|<-)(\d+)")


@dataclass(frozen=True)
class _Made:
    """A call as a rank made it."""

    position: _Position
    kind: str
    record: int


def odd_ranks(
    ranks: Sequence[int],
    dumps: Mapping[int, Dump],
    groups: Mapping[tuple[int, str], Group],
    stands: Mapping[int, int],
) -> list[int]:
    """Those of the ranks whose order of calls nobody else has, where others agree on one. `stands`:
    the running number of the call in which each rank stands."""
    chosen = set(ranks)
    others = [rank for rank in dumps if rank not in chosen][:OTHERS_MAX]
    made = {
        rank: list(_made(dumps[rank], groups, stands.get(rank)))
        for rank in [*ranks[:OTHERS_MAX], *others]
        if rank in dumps
    }
    by_position: dict[tuple[_Position, str], dict[int, list[int]]] = {}
    by_record: dict[int, dict[int, _Made]] = {}
    for rank, calls in made.items():
        for call in calls:
            places = by_position.setdefault((call.position, call.kind), {})
            places.setdefault(call.record, []).append(rank)
            by_record.setdefault(call.record, {})[rank] = call
    weights = Counter(
        {
            rank: sum(_is_alone(by_position[call.position, call.kind], rank) for call in made[rank])
            + _differences(rank, made, by_record)
            for rank in ranks
            if rank in made
        }
    )
    return [rank for rank in ranks if weights[rank]]


def _made(
    dump: Dump, groups: Mapping[tuple[int, str], Group], record: int | None
) -> Iterator[_Made]:
    order = dump.order
    words = [
        (groups[dump.rank, name].role if (dump.rank, name) in groups else name, _relative(kind))
        for name, kind in order.words
    ]
    stand = len(order.records) if record is None else order.records.index(record)
    for at in range(max(0, stand - BEFORE), min(len(order.records), stand + BEFORE)):
        role, kind = words[order.codes[at]]
        is_peer = kind.startswith(("send", "recv"))
        position = (f"{role} peers" if is_peer else role), order.numbers[at]
        yield _Made(position, kind, order.records[at])


def _relative(kind: str) -> str:
    """`send 1->2` as `send +1`, which is the same for all ranks of a pipeline."""
    match = _PEER.fullmatch(kind)
    return f"{match[1]} {int(match[3]) - int(match[2]):+}" if match else kind


def _is_alone(places: Mapping[int, Sequence[int]], rank: int) -> bool:
    """Whether the rank alone has the call under its running number, and each other rank with it
    agrees with one more."""
    own = next(ranks for ranks in places.values() if rank in ranks)
    others = [ranks for ranks in places.values() if ranks is not own]
    return len(own) == 1 and bool(others) and all(len(ranks) >= ALIKE for ranks in others)


def _differences(
    rank: int, made: Mapping[int, Sequence[_Made]], by_record: Mapping[int, Mapping[int, _Made]]
) -> int:
    """How many calls the rank made where those that are at the same place agree on others."""
    fellows = set[int]()
    for call in made[rank]:
        at = by_record[call.record].items()
        fellows.update(other for other, theirs in at if theirs.position == call.position)
    fellows.discard(rank)
    found = 0
    for call in made[rank]:
        theirs = [m for other, m in by_record[call.record].items() if other in fellows]
        kinds = Counter((m.position, m.kind) for m in theirs)
        agreed = len(kinds) == 1 and len(theirs) >= ALIKE
        found += agreed and (call.position, call.kind) not in kinds
    return found


def minority(
    kinds: Mapping[str, Sequence[int]], siblings: Iterable[Mapping[str, Sequence[int]]]
) -> list[int]:
    """The ranks that called something else than most; on a tie, something else than most groups of
    the same role have called under that number. Empty where that does not tell."""
    counts = Counter({kind: len(ranks) for kind, ranks in kinds.items()})
    most = _most(counts)
    if most is None:
        others = Counter[str]()
        for sibling in siblings:
            others.update({kind: len(ranks) for kind, ranks in sibling.items()})
        most = _most(others)
    if most is None or most not in kinds:
        return []
    return sorted(rank for kind, ranks in kinds.items() if kind != most for rank in ranks)


def _most(counts: Counter[str]) -> str | None:
    """What more than half of all have."""
    first = counts.most_common(1)
    return first[0][0] if first and 2 * first[0][1] > counts.total() else None
