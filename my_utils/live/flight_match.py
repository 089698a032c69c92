"""Which collective a run hangs in: calls of all ranks, matched by process group and number.

Each rank numbers the collectives of a group as it calls them, so a number means the same collective
on all its ranks. The first collective of a group that is unfinished on some rank is the one that
hangs. Ranks that never called it hold the others up. Ranks that called something else under its
number took another path in the code. Torch's own analyser is
`torch.distributed.flight_recorder.fr_trace`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from .flight_files import Call, Dump, GroupCalls, PeerCall
from .flight_kinds import first_difference


@dataclass
class Stalled:
    """A collective, or a send or receive, that some ranks are in and that does not end."""

    group: str
    description: str
    members: tuple[int, ...]
    call: Call  # as one of the waiting ranks called it
    verdict: str  # "never entered", "different calls" or "not finished"
    waiting: list[int]
    missing: list[int]  # that never entered it, by their dumps
    no_dump: list[int]  # members of which there is no dump
    unknown: list[int]  # whose dump does not reach back so far
    others: dict[str, list[int]] = field(default_factory=dict)  # calls under the number, and ranks
    last_calls: dict[int, Call | None] = field(default_factory=dict)  # of missing ranks

    @property
    def since_ns(self) -> int:
        return self.call.created_ns


_Group = tuple[str, tuple[int, ...]]  # the name, and the ranks that torch says; () when it does not


def find_stalled(dumps: Sequence[Dump], world_size: int = 0) -> list[Stalled]:
    """The first collective of each group that does not end, and sends and receives; the one that
    has waited longest first. `world_size` 0: not known."""
    by_rank = {dump.rank: dump for dump in dumps}
    found = []
    for (name, ranks), calls in _groups(dumps).items():
        members = ranks or _members(calls, world_size)
        if not ranks and len(members) == world_size:
            world_size = 0  # there is one group of all ranks
        stalled = _first_stalled(name, members, calls, by_rank)
        if stalled is not None:
            found.append(stalled)
        found += _stalled_peers(name, members, calls, by_rank)
    return sorted(found, key=lambda stalled: stalled.since_ns)


def _groups(dumps: Sequence[Dump]) -> dict[_Group, dict[int, GroupCalls]]:
    """Of each group what its ranks called. Groups that were split may share a name."""
    groups: dict[_Group, dict[int, GroupCalls]] = {}
    for dump in dumps:
        for name, calls in dump.groups.items():
            groups.setdefault((name, dump.members.get(name, ())), {})[dump.rank] = calls
    return groups


def _members(calls: Mapping[int, GroupCalls], world_size: int) -> tuple[int, ...]:
    """The members of a group whose ranks the dumps do not list: all ranks for the default group,
    else the ranks that called something in it."""
    is_default = any(group.description == "default_pg" for group in calls.values())
    return tuple(range(world_size)) if is_default and world_size else tuple(sorted(calls))


def _first_stalled(
    name: str,
    members: tuple[int, ...],
    calls: Mapping[int, GroupCalls],
    by_rank: Mapping[int, Dump],
) -> Stalled | None:
    pending = [min(group.pending) for group in calls.values() if group.pending]
    odd = first_difference(group.kinds for group in calls.values())
    if not pending and odd is None:
        return None
    seq = min([*pending, *([] if odd is None else [odd])])
    others = _kinds_of(seq, calls)
    waiting = [rank for rank in members if rank in calls and seq in calls[rank].pending]
    missing: list[int] = []
    unknown: list[int] = []
    for rank in members:
        last = _last(rank, calls, by_rank)
        if rank in by_rank and (last is None or last < seq):
            (unknown if last is None else missing).append(rank)
    no_dump = [rank for rank in members if rank not in by_rank]
    if len(others) > 1:
        verdict = "different calls"
    else:
        verdict = "never entered" if missing else "not finished"
    example = _example(seq, waiting, calls)
    if example is None:
        return None
    return Stalled(
        group=name,
        description=next(iter(calls.values())).description,
        members=members,
        call=example,
        verdict=verdict,
        waiting=waiting,
        missing=missing,
        no_dump=no_dump,
        unknown=unknown,
        others=others if len(others) > 1 else {},
        last_calls={rank: calls[rank].newest if rank in calls else None for rank in missing},
    )


def _last(rank: int, calls: Mapping[int, GroupCalls], by_rank: Mapping[int, Dump]) -> int | None:
    """The newest collective that a rank entered; None when it is not known."""
    if rank in calls and calls[rank].last > 0:
        return calls[rank].last
    dump = by_rank.get(rank)
    if dump is None:
        return None
    number = next(iter(calls.values())).number
    return 0 if dump.is_whole else dump.enqueued.get(number)


def _kinds_of(seq: int, calls: Mapping[int, GroupCalls]) -> dict[str, list[int]]:
    kinds: dict[str, list[int]] = {}
    for rank, group in sorted(calls.items()):
        if kind := group.kinds.get(seq):
            kinds.setdefault(kind, []).append(rank)
    return kinds


def _example(seq: int, waiting: Sequence[int], calls: Mapping[int, GroupCalls]) -> Call | None:
    """The call of the rank that has been in it longest; where none is in it any more, what a rank
    called last stands for it."""
    found = [calls[rank].pending[seq] for rank in waiting]
    if not found:
        found = [g.newest for g in calls.values() if g.newest is not None and g.newest.seq >= seq]
    return min(found, key=lambda call: call.created_ns, default=None)


def _stalled_peers(
    name: str,
    members: tuple[int, ...],
    calls: Mapping[int, GroupCalls],
    by_rank: Mapping[int, Dump],
) -> list[Stalled]:
    """Sends and receives under way; of each pair of ranks and direction the first."""
    found = []
    by_place = sorted(members)
    places = {rank: place for place, rank in enumerate(by_place)}
    for rank, group in calls.items():
        first: dict[tuple[str, int], PeerCall] = {}
        for pending in group.peer_pending:
            first.setdefault((pending.way, pending.peer), pending)
        for (way, place), pending in first.items():
            if place < len(by_place) and rank in places:
                answer = ("recv" if way == "send" else "send", places[rank])
                peer = by_place[place]
                found.append(_peer(name, members, rank, peer, answer, pending, calls, by_rank))
    return found


def _peer(
    name: str,
    members: tuple[int, ...],
    rank: int,
    peer: int,
    answer: tuple[str, int],
    pending: PeerCall,
    calls: Mapping[int, GroupCalls],
    by_rank: Mapping[int, Dump],
) -> Stalled:
    """`answer`: the other way, and the place of this rank, as the peer has it."""
    count = calls[peer].peer_counts.get(answer, 0) if peer in calls else 0
    is_known = peer in by_rank and by_rank[peer].is_whole and by_rank[rank].is_whole
    never = is_known and count <= pending.ordinal
    return Stalled(
        group=name,
        description=calls[rank].description,
        members=members,
        call=pending.call,
        verdict="never entered" if never else "not finished",
        waiting=[rank],
        missing=[peer] if never else [],
        no_dump=[] if peer in by_rank else [peer],
        unknown=[peer] if peer in by_rank and not is_known else [],
        last_calls={peer: calls[peer].newest if peer in calls else None} if never else {},
    )
