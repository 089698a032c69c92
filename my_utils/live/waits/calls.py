"""Where each rank stands, and who holds the call up in which it does.

A rank stands in its oldest call that has not ended. The other members of the group have not come to
it ("absent"), have it pending behind another call ("behind"), are in it too, or have ended it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ..flight_files import Call, Dump, PeerCall
from .groups import Group

HUNG_S = 5.0  # a shorter wait is none: clocks of hosts lie so far apart
SAME_MOMENT_S = 6.0  # between dumps of one standstill


@dataclass
class Node:
    """A call in which ranks stand.

    absent and behind: members that hold it up. inside: those that stand in it. ended: those that
    have ended it; late: those of them that came after the others had waited. unknown: members
    without a dump. unclear: members whose dump does not say it. kinds: what ranks called under its
    number, where they differ. accused: those whose path parted from the others' here.
    """

    group: Group
    call: Call
    peer: int | None = None
    inside: list[int] = field(default_factory=list)
    absent: list[int] = field(default_factory=list)
    behind: list[int] = field(default_factory=list)
    ended: list[int] = field(default_factory=list)
    late: list[int] = field(default_factory=list)
    unknown: list[int] = field(default_factory=list)
    unclear: list[int] = field(default_factory=list)
    kinds: dict[str, list[int]] = field(default_factory=dict)
    accused: list[int] = field(default_factory=list)

    @property
    def members(self) -> tuple[int, ...]:
        if self.peer is None:
            return self.group.members
        return tuple(sorted([*self.inside, self.peer]))

    @property
    def holders(self) -> list[int]:
        """Whom the ranks inside wait for."""
        return self.accused or [*self.absent, *self.behind, *self.late]


@dataclass(frozen=True)
class Stand:
    """Where a rank stands: a call of a group, or one with a peer."""

    group: Group
    call: Call
    peer: PeerCall | None
    waited_s: float  # when the dump was written


class Standstill:
    """The dumps of a run, and in which calls its ranks stand."""

    def __init__(
        self,
        dumps: Sequence[Dump],
        groups: Mapping[tuple[int, str], Group],
        world_size: int = 0,
    ) -> None:
        self.dumps = {dump.rank: dump for dump in dumps}
        self.groups = groups
        self.newest_s = max((_written_s(dump) for dump in dumps), default=0.0)
        size = max(world_size, max(self.dumps, default=0))
        self._missing = [rank for rank in range(size) if rank not in self.dumps]
        self.pending = {dump.rank: _pending_records(dump) for dump in dumps}
        stands = {dump.rank: _stand(dump, groups) for dump in dumps}
        self.stale = frozenset(
            rank for rank, stand in stands.items() if stand is not None and self._is_stale(stand)
        )
        self.stands: dict[int, Stand] = {
            rank: stand
            for rank, stand in stands.items()
            if stand is not None and rank not in self.stale
        }
        self.nodes: dict[int, Node] = {}  # of each rank that stands somewhere
        self._find_nodes()

    def maybe_failed(self, rank: int) -> Group | None:
        """The group of the newest call of a rank, where gloo may have ended it by an error: not all
        members are known to have ended it."""
        for name, calls in self.dumps[rank].groups.items():
            group = self.groups.get((rank, name))
            if calls.failed and group is not None:
                known = [own for own in group.calls.values() if own.last >= calls.failed]
                pending = any(calls.failed in own.pending for own in known)
                return group if pending or len(known) < self._size(group) else None
        return None

    def _size(self, group: Group) -> int:
        """How many members it should have, by those that do the same where it is not known."""
        if group.is_listed:
            return len(group.members)
        alike = (len(g.members) for g in self.groups.values() if g.role == group.role)
        return max(alike)

    def without_dump(self, group: Group) -> list[int]:
        """Its members without a dump; where members are not listed, all that may be some."""
        if group.is_listed:
            return [rank for rank in group.members if rank not in self.dumps]
        return self._missing

    def _is_stale(self, stand: Stand) -> bool:
        """Whether the dump is of a moment before the standstill: it is older than others, and in it
        the rank has not waited yet."""
        written_s = stand.call.created_ns / 1e9 + stand.waited_s
        return stand.waited_s < HUNG_S and written_s < self.newest_s - SAME_MOMENT_S

    def _find_nodes(self) -> None:
        collectives: dict[tuple[int, int], Node] = {}
        for rank, stand in self.stands.items():
            if stand.peer is not None:
                self.nodes[rank] = self._between_peers(rank, stand, stand.peer)
                continue
            key = id(stand.group), stand.call.seq
            node = collectives.setdefault(key, Node(stand.group, stand.call))
            node.inside.append(rank)
            if stand.call.created_ns < node.call.created_ns:
                node.call = stand.call
            self.nodes[rank] = node
        for node in collectives.values():
            self._fill(node)

    def _fill(self, node: Node) -> None:
        group, seq = node.group, node.call.seq
        inside = set(node.inside)
        for rank in group.members:
            dump = self.dumps.get(rank)
            if dump is None:
                node.unknown.append(rank)
                continue
            calls = group.calls.get(rank)
            if calls is not None and (kind := calls.kinds.get(seq)):
                node.kinds.setdefault(kind, []).append(rank)
            if rank in inside:
                continue
            if calls is not None and seq in calls.pending:
                (node.unclear if rank in self.stale else node.behind).append(rank)
                continue
            last = group.last(dump)
            if last is None or (calls is not None and calls.failed == seq):
                node.unclear.append(rank)
            elif last < seq:
                (node.absent if self._knows(dump, node.call) else node.unclear).append(rank)
            else:
                (node.ended if group.is_sure(dump) else node.unclear).append(rank)
        if not group.is_listed:
            node.unknown = self.without_dump(group)
        if len(node.kinds) < 2:
            node.kinds = {}

    def _knows(self, dump: Dump, call: Call) -> bool:
        """Whether the dump is young enough to say that its rank has not come to the call."""
        if dump.rank in self.stale:
            return False
        return _written_s(dump) - call.created_ns / 1e9 >= HUNG_S

    def _between_peers(self, rank: int, stand: Stand, call: PeerCall) -> Node:
        group = stand.group
        is_member = 0 <= call.peer < len(group.members)
        peer = group.members[call.peer] if is_member else -1
        node = Node(group, stand.call, peer, inside=[rank])
        dump = self.dumps.get(peer)
        if dump is None:
            node.unknown.append(peer)
            return node
        response = "recv" if call.way == "send" else "send", group.place(rank)
        calls = group.calls.get(peer)
        pending = [p for p in calls.peer_pending if (p.way, p.peer) == response] if calls else []
        if peer in self.stale:
            node.unclear.append(peer)
        elif pending:
            theirs = self.stands.get(peer)
            is_there = theirs is not None and theirs.call.record == pending[0].call.record
            if not is_there:
                node.behind.append(peer)
        elif self._has_answered(dump, rank, calls.peer_counts if calls else {}, response, call):
            node.ended.append(peer)
        else:
            (node.absent if self._knows(dump, stand.call) else node.unclear).append(peer)
        return node

    def _has_answered(
        self,
        dump: Dump,
        rank: int,
        counts: Mapping[tuple[str, int], int],
        response: tuple[str, int],
        call: PeerCall,
    ) -> bool:
        """Calls of a pair match by their order, which is known where both dumps have them all.
        Elsewhere, one that is pending has no match among those that have ended."""
        is_whole = dump.is_whole and self.dumps[rank].is_whole
        return is_whole and counts.get(response, 0) > call.ordinal


def _stand(dump: Dump, groups: Mapping[tuple[int, str], Group]) -> Stand | None:
    first: tuple[int, str, Call, PeerCall | None] | None = None
    for name, calls in dump.groups.items():
        if (dump.rank, name) not in groups:
            continue
        for call in calls.pending.values():
            if first is None or call.record < first[0]:
                first = (call.record, name, call, None)
        for pending in calls.peer_pending:
            if first is None or pending.call.record < first[0]:
                first = (pending.call.record, name, pending.call, pending)
    if first is None:
        return None
    _, name, call, peer = first
    waited_s = _written_s(dump) - call.created_ns / 1e9
    return Stand(groups[dump.rank, name], call, peer, waited_s)


def _pending_records(dump: Dump) -> frozenset[int]:
    """The running numbers of the calls that have not ended."""
    groups = dump.groups.values()
    collectives = {call.record for group in groups for call in group.pending.values()}
    return frozenset(
        collectives | {pending.call.record for group in groups for pending in group.peer_pending}
    )


def _written_s(dump: Dump) -> float:
    """A dump is no older than the calls in it."""
    newest = [group.newest.created_ns for group in dump.groups.values() if group.newest]
    return max(dump.written_s, max(newest, default=0) / 1e9)
