"""In which call each rank waits, and who holds that call up.

A rank waits in its oldest call that has not ended. The other members of the group have not come to
it ("absent"), have it pending behind another call ("behind"), are in it too, or have ended it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from ..flight_files import Call, Dump, PeerCall
from .groups import Group, places_of

_AFTER_ALL = 1 << 62  # the running number of a call that a dump does not have
HUNG_S = 5.0  # a shorter wait does not count: clocks of hosts are so far apart
SAME_MOMENT_S = 6.0  # between dumps of one standstill


@dataclass
class Node:
    """A call in which ranks wait.

    absent and behind: members that hold it up. inside: those that wait in it. ended: those that
    have ended it; late: those of them that came after the others had waited. unknown: members
    without a dump. unclear: members whose dump does not say it; entered: those of them that have
    come to it, and have either ended it or failed. kinds: what ranks called under its number, where
    they differ. accused: those whose path parted from the others' here.
    """

    group: Group
    call: Call
    peers: frozenset[int] = frozenset()
    inside: list[int] = field(default_factory=list)
    absent: list[int] = field(default_factory=list)
    behind: list[int] = field(default_factory=list)
    ended: list[int] = field(default_factory=list)
    late: list[int] = field(default_factory=list)
    unknown: list[int] = field(default_factory=list)
    unclear: list[int] = field(default_factory=list)
    entered: list[int] = field(default_factory=list)
    kinds: dict[str, list[int]] = field(default_factory=dict)
    accused: list[int] = field(default_factory=list)

    @property
    def members(self) -> tuple[int, ...]:
        return tuple(sorted(self.peers.union(self.inside))) if self.peers else self.group.members

    @property
    def open_to(self) -> list[int]:
        """The ranks of which nobody knows whether those inside wait for them."""
        return [*self.unknown, *(rank for rank in self.unclear if rank not in self.entered)]

    @property
    def holders(self) -> list[int]:
        """The ranks that those inside wait for."""
        return self.accused or [*self.absent, *self.behind, *self.late]


@dataclass(frozen=True)
class Stand:
    """Where a rank waits: a collective, or sends and receives that were called as one."""

    group: Group
    call: Call
    peers: tuple[PeerCall, ...]
    waited_s: float  # when the dump was written


@dataclass(frozen=True)
class RecordedWait:
    """Where a rank waits by the stages and calls that `my_utils run` has recorded. holders: the
    members that have not come. since_ns: Unix time. is_odd: its newest calls are in an order
    that it has never had before."""

    name: str
    members: tuple[int, ...]
    holders: tuple[int, ...]
    since_ns: int
    is_odd: bool = False


class Standstill:
    """The dumps of a run, and in which calls its ranks wait."""

    def __init__(
        self,
        dumps: Sequence[Dump],
        groups: Mapping[tuple[int, str], Group],
        world_size: int = 0,
        gone: Collection[int] = (),
        recorded: Mapping[int, RecordedWait] | None = None,
    ) -> None:
        """gone: ranks whose processes ended before the others hung; without a dump they can
        have entered nothing more. recorded: where ranks wait of which the dumps do not say it, as
        gloo's do not have sends and receives."""
        self.dumps = {dump.rank: dump for dump in dumps}
        self.groups = groups
        self.newest_s = max((_written_s(dump) for dump in dumps), default=0.0)
        size = max(world_size, max(self.dumps, default=0))
        self._missing = [rank for rank in range(size) if rank not in self.dumps]
        self.gone = frozenset(gone).difference(self.dumps)
        self.places = places_of(groups)
        self.pending = {dump.rank: _pending_records(dump) for dump in dumps}
        stands = {dump.rank: _stand(dump, groups) for dump in dumps}
        known = {rank: stand for rank, stand in stands.items() if stand is not None}
        begun = (one.call.created_ns for one in known.values() if one.waited_s >= HUNG_S)
        self._latest_wait_s = max(begun, default=0) / 1e9
        self.stale = frozenset(
            rank
            for rank, stand in known.items()
            if self._is_stale(stand) or self._is_over(rank, stand, known)
        )
        self.stands: dict[int, Stand] = {
            rank: stand for rank, stand in known.items() if rank not in self.stale
        }
        self.nodes: dict[int, Node] = {}  # of each rank that waits somewhere
        self._find_nodes()
        self.odd_recorded: set[int] = set()  # ranks that wait in a call that is odd in the rows
        for rank, wait in (recorded or {}).items():
            if rank in self.dumps and rank not in self.stands and rank not in self.stale:
                self._add_recorded(rank, wait)

    def _add_recorded(self, rank: int, wait: RecordedWait) -> None:
        group = Group.recorded(wait.name, wait.members)
        if wait.is_odd:
            self.odd_recorded.add(rank)
        kind = wait.name.partition(" ")[0]
        call = Call(0, kind, "", wait.since_ns, True, "", record=_AFTER_ALL)
        waited_s = _written_s(self.dumps[rank]) - wait.since_ns / 1e9
        self.stands[rank] = Stand(group, call, (), waited_s)
        self.nodes[rank] = Node(group, call, inside=[rank], absent=list(wait.holders))

    def maybe_failed(self, rank: int) -> Group | None:
        """The group of the newest call of a rank, where gloo may have ended it by an error: not all
        members are known to have ended it."""
        if rank in self.gone or rank not in self.dumps:
            return None
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

    @property
    def idle(self) -> list[int]:
        """The ranks that had been in no call for long when their dumps were written, and have gone
        on from none that may have failed."""
        return [
            rank
            for rank, dump in self.dumps.items()
            if rank not in self.stands and rank not in self.stale
            if 0.0 < dump.newest_s <= _written_s(dump) - HUNG_S and self.maybe_failed(rank) is None
        ]

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

    def _is_over(self, rank: int, stand: Stand, stands: Mapping[int, Stand]) -> bool:
        """Whether the dump is of a standstill before this one, as that of an earlier job may be:
        others have ended the call since, and then waited for long in one that they made later."""
        written_s = _written_s(self.dumps[rank])
        if stand.peers or self._latest_wait_s <= written_s + SAME_MOMENT_S:
            return False
        for other in stand.group.members:
            later = stands.get(other)
            if later is None or later.waited_s < HUNG_S:
                continue
            dump = self.dumps[other]
            is_later = later.call.created_ns / 1e9 > written_s + SAME_MOMENT_S
            last = stand.group.last(dump) if stand.group.is_sure(dump) else None
            if is_later and (last or 0) >= stand.call.seq:
                return True
        return False

    def _find_nodes(self) -> None:
        collectives: dict[tuple[int, int], Node] = {}
        for rank, stand in self.stands.items():
            if stand.peers:
                node = self.nodes[rank] = Node(stand.group, stand.call, inside=[rank])
                for call in stand.peers:
                    self._add_peer(node, rank, call)
                if len(set(node.ended)) < len(node.peers):
                    node.ended = []
                continue
            key = id(stand.group), stand.call.seq
            node = collectives.setdefault(key, Node(stand.group, stand.call))
            node.inside.append(rank)
            if stand.call.created_ns < node.call.created_ns:
                node.call = stand.call
            self.nodes[rank] = node
        for node in collectives.values():
            self._fill(node)
        self._find_held_together()

    def _find_held_together(self) -> None:
        """A send or receive whose other side has come to it, together with others that wait."""
        of_peers = {rank: node for rank, node in self.nodes.items() if node.peers}
        held = {rank for rank, node in of_peers.items() if node.holders or node.open_to}
        for rank, node in of_peers.items():
            if rank not in held:
                node.behind += [peer for peer in node.peers & held if peer not in node.ended]

    def _fill(self, node: Node) -> None:
        group, seq = node.group, node.call.seq
        inside = set(node.inside)
        for rank in group.members:
            dump = self.dumps.get(rank)
            if dump is None:
                (node.absent if rank in self.gone else node.unknown).append(rank)
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
            if calls is not None and calls.failed == seq:
                node.entered.append(rank)
            if last is None or rank in node.entered:
                node.unclear.append(rank)
            elif last < seq:
                (node.absent if self._knows(dump, node.call) else node.unclear).append(rank)
            else:
                (node.ended if group.is_sure(dump) else node.unclear).append(rank)
        if not group.is_listed:
            without = self.without_dump(group)
            node.absent += [rank for rank in without if rank in self.gone]
            node.unknown = [rank for rank in without if rank not in self.gone]
        if len(node.kinds) < 2:
            node.kinds = {}

    def _knows(self, dump: Dump, call: Call) -> bool:
        """Whether the dump is young enough to say that its rank has not come to the call."""
        if dump.rank in self.stale:
            return False
        return _written_s(dump) - call.created_ns / 1e9 >= HUNG_S

    def _add_peer(self, node: Node, rank: int, call: PeerCall) -> None:
        group = node.group
        if not 0 <= call.peer < len(group.members):
            self._add_strangers(node)
            return
        peer = group.members[call.peer]
        node.peers |= {peer}
        dump = self.dumps.get(peer)
        known = (*node.absent, *node.behind, *node.unknown, *node.unclear)
        if dump is None or peer in known:
            if peer not in known:
                (node.absent if peer in self.gone else node.unknown).append(peer)
            return
        response = "recv" if call.way == "send" else "send", group.place(rank)
        calls = group.calls.get(peer)
        pending = [p for p in calls.peer_pending if (p.way, p.peer) == response] if calls else []
        # Calls of a pair match by their order, which is known where both dumps have them all.
        # Elsewhere, one that is pending has no match among those that have ended.
        is_whole = dump.is_whole and self.dumps[rank].is_whole
        answered = calls.peer_counts.get(response, 0) if calls and is_whole else 0
        if peer in self.stale:
            node.unclear.append(peer)
        elif pending:
            theirs = self.stands.get(peer)
            if theirs is None or pending[0] not in theirs.peers:
                node.behind.append(peer)
        elif answered > call.ordinal:
            node.ended.append(peer)
        else:
            (node.absent if self._knows(dump, node.call) else node.unclear).append(peer)

    def _add_strangers(self, node: Node) -> None:
        """Where no dump lists who is in a group, those that have called nothing in it may be."""
        known = {*node.group.members, *node.unknown, *node.unclear}
        node.unknown += [rank for rank in self._missing if rank not in known]
        node.unclear += [rank for rank in self.dumps if rank not in known]


def _stand(dump: Dump, groups: Mapping[tuple[int, str], Group]) -> Stand | None:
    first: tuple[int, Group, Call, tuple[PeerCall, ...]] | None = None
    for name, calls in dump.groups.items():
        group = groups.get((dump.rank, name))
        if group is None:
            continue
        for call in calls.pending.values():
            if first is None or call.record < first[0]:
                first = call.record, group, call, ()
        oldest = min(calls.peer_pending, key=lambda one: one.call.record, default=None)
        if oldest is not None and (first is None or oldest.call.record < first[0]):
            seq = oldest.call.seq
            together = tuple(one for one in calls.peer_pending if one.call.seq == seq)
            first = oldest.call.record, group, oldest.call, together
    if first is None:
        return None
    _, group, call, peers = first
    return Stand(group, call, peers, _written_s(dump) - call.created_ns / 1e9)


def _pending_records(dump: Dump) -> frozenset[int]:
    """The running numbers of the calls that have not ended."""
    groups = dump.groups.values()
    collectives = {call.record for group in groups for call in group.pending.values()}
    return frozenset(
        collectives | {pending.call.record for group in groups for pending in group.peer_pending}
    )


def idle_s(dump: Dump, group: Group) -> float:
    """For how long the rank had called nothing in a group when its dump was written."""
    calls = group.calls.get(dump.rank)
    return _written_s(dump) - (calls.newest_s if calls is not None else 0.0)


def _written_s(dump: Dump) -> float:
    """A dump is no older than the calls in it."""
    return max(dump.written_s, dump.newest_s)
