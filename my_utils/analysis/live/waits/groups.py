"""The process groups of a run, as the dumps of its ranks describe them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..flight_files import Dump, GroupCalls

UNNAMED = frozenset(["", "undefined"])
PAIR = "pair"  # of a send and a receive that the rows of a run have


@dataclass
class Group:
    """A process group.

    role: what groups that do the same for other ranks have in common. numbers: torch's own numbers
    of it, which may differ from rank to rank. has_peers: whether somebody sends or receives in it.
    is_listed: whether a dump lists the members; else they are those that called something in it.
    """

    name: str
    description: str
    members: tuple[int, ...]
    role: str
    calls: dict[int, GroupCalls]
    numbers: frozenset[str]
    has_peers: bool
    is_listed: bool = True

    @classmethod
    def recorded(cls, name: str, members: tuple[int, ...]) -> Group:
        """One that is known by the rows of a run, as "all_reduce tp" or "recv 1"."""
        kind, _, label = name.partition(" ")
        label = PAIR if kind in ("send", "recv") else label
        return cls(label, label, members, label, {}, frozenset(), has_peers=False)

    def last(self, dump: Dump) -> int | None:
        """The newest collective that a rank has entered; None where its dump does not say it."""
        calls = self.calls.get(dump.rank)
        known = calls.last if calls is not None else 0
        if dump.is_whole:
            return known
        if self.has_peers:  # the status may be the number of a send or receive
            return known or None
        number = self._number_in(dump)
        status = dump.enqueued.get(number) if number is not None else None
        return known or None if status is None else max(known, status)

    def _number_in(self, dump: Dump) -> str | None:
        """On a rank that has called nothing in it lately, that of the others, if these agree and it
        is no other group's there. Each process counts the groups that it is in."""
        calls = self.calls.get(dump.rank)
        if calls is not None:
            return calls.number
        taken = {other.number for other in dump.groups.values()}
        known = next(iter(self.numbers)) if len(self.numbers) == 1 else None
        return None if known in taken else known

    def is_sure(self, dump: Dump) -> bool:
        """Whether `last` is known to be no higher than the truth."""
        return dump.is_whole or not self.has_peers or dump.rank in self.calls

    @property
    def is_ring(self) -> bool:
        """Whether each member sends and receives at once, as far around as the others."""
        size = len(self.members)
        far = {
            frozenset((way, (peer - self.place(rank)) % size) for way, peer in calls.peer_counts)
            for rank, calls in self.calls.items()
        }
        in_batches = all(calls.in_batches for calls in self.calls.values())
        return in_batches and len(far) == 1 and far != {frozenset()} and len(self.calls) == size

    def place(self, rank: int) -> int:
        """The number of a rank within the group; -1 for a stranger."""
        return self._places.get(rank, -1)

    def __post_init__(self) -> None:
        self._places = {rank: place for place, rank in enumerate(self.members)}


_Key = tuple[str, tuple[int, ...]]


def find_groups(dumps: Sequence[Dump], world_size: int = 0) -> dict[tuple[int, str], Group]:
    """The group of each rank that has called something in it, by rank and name. `world_size` 0: not
    known."""
    calls: dict[_Key, dict[int, GroupCalls]] = {}
    for dump in dumps:
        for name, group in dump.groups.items():
            calls.setdefault((name, _listed(dump, name, group)), {})[dump.rank] = group
    numbers = _numbers_of_descriptions(dumps)
    is_counted_alike = all(len({g.number for g in own.values()}) == 1 for own in calls.values())
    groups: dict[_Key, Group] = {}
    for (name, ranks), own in calls.items():
        first = next(iter(own.values()))
        members = tuple(sorted(ranks)) or _members(own, world_size)
        if len(members) == world_size:
            world_size = 0  # there is one group of all ranks that the dumps do not list
        described = first.description not in UNNAMED
        known = numbers[first.description] if described else {g.number for g in own.values()}
        groups[name, ranks] = Group(
            name=name,
            description=first.description,
            members=members,
            role=_role(
                first.description,
                first.number if is_counted_alike else name,
                dumps[0].descriptions if described else {},
            ),
            calls=own,
            numbers=frozenset(known),
            has_peers=any(group.has_peers for group in own.values()),
            is_listed=bool(ranks) or len(members) > len(own),
        )
    return {
        (rank, name): group
        for (name, _), group in groups.items()
        for rank in group.calls
        if group.place(rank) >= 0
    }


def places_of(groups: Mapping[tuple[int, str], Group]) -> dict[int, tuple[tuple[str, int], ...]]:
    """The places of each rank in the groups in which somebody sends and receives, such as its stage
    in a pipeline; not in rings, in which all do the same. Ranks with the same places make the same
    calls."""
    found: dict[int, list[tuple[str, int]]] = {}
    has_places = {id(group): group.has_peers and not group.is_ring for group in groups.values()}
    for (rank, _), group in groups.items():
        if has_places[id(group)]:
            found.setdefault(rank, []).append((group.role, group.place(rank)))
    return {rank: tuple(sorted(own)) for rank, own in found.items()}


def _listed(dump: Dump, name: str, group: GroupCalls) -> tuple[int, ...]:
    """The ranks of a group as torch says them. gloo's default group has no name there."""
    ranks = dump.members.get(name, ())
    return ranks or (dump.members.get("", ()) if group.description == "default_pg" else ())


def _numbers_of_descriptions(dumps: Sequence[Dump]) -> Mapping[str, set[str]]:
    numbers: dict[str, set[str]] = {}
    for dump in dumps:
        for group in dump.groups.values():
            numbers.setdefault(group.description, set()).add(group.number)
    return numbers


def _role(description: str, place: str, descriptions: Mapping[str, str]) -> str:
    """The description where there is one, and the place among others where there is none, or where
    a rank has several groups of that description. place: torch's number, where it is the same on
    all members of each group, else the name."""
    alike = Counter(descriptions.values())[description]
    return f"{description} {place}" if description in UNNAMED or alike > 1 else description


def _members(calls: Mapping[int, GroupCalls], world_size: int) -> tuple[int, ...]:
    """The members of a group whose ranks the dumps do not list: all ranks for the default group,
    else the ranks that called something in it."""
    is_default = any(group.description == "default_pg" for group in calls.values())
    return tuple(range(world_size)) if is_default and world_size else tuple(sorted(calls))
