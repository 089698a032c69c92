"""Who holds up all others in a hang, from the dumps of its ranks."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field

from ..flight_files import PAUSES_KEPT, Dump
from .calls import HUNG_S, SAME_MOMENT_S, Node, RecordedWait, Standstill, idle_s
from .graph import last_parts
from .groups import Group, find_groups
from .orders import Orders, most_common, others_than, stopped_early

SLOW_SHARE = 0.1  # of the longest wait: a rank awaited for less is slow beside it
LONG_S = 60.0
TIMES_USUAL = 2.0  # the pauses between calls that a rank makes again and again
TIMES_LONGEST = 1.25  # the longest pause


@dataclass
class Cause:
    """What a hang comes from.

    kind: "never entered", "stuck inside", "came late", "other path", "other order", "no dump",
    "stopped", or "dead": it left no dump, as its process ended before. Undecided are "inside" (all
    are in the call) and "ring", too. ranks: who is to blame, or among whom it is. direct: the ranks
    that wait in a call for them; waiting: those and all that wait for these.
    """

    kind: str
    ranks: list[int]
    node: Node
    waited_s: float
    direct: list[int] = field(default_factory=list)
    waiting: list[int] = field(default_factory=list)
    decided: bool = True


@dataclass
class _Blame:
    """Who is to blame, before it is known who waits. held: the calls in which others wait."""

    kind: str
    ranks: list[int]
    node: Node
    held: Sequence[Node]
    decided: bool = True


_Vertex = int | tuple[str, int]  # a rank, or a node by its address


class _Graph:
    """Ranks, the calls in which they wait, and whom they wait for there."""

    def __init__(self, still: Standstill) -> None:
        self.still = still
        self.orders = Orders(still)
        self.nodes = {id(node): node for node in still.nodes.values()}
        self.parted: dict[int, Node] = {}
        self._split_paths()
        self.holds: dict[int, list[Node]] = {}
        for node in self.nodes.values():
            for rank in node.holders:
                self.holds.setdefault(rank, []).append(node)

    def _split_paths(self) -> None:
        """Where paths parted. Later differences of a rank follow from the first, so that one which
        most are against is accused in the ties, too."""
        self._find_late()
        nodes = [node for node in self.nodes.values() if node.kinds]
        for node in nodes:
            self._accuse(node, others_than(most_common(node.kinds), node.kinds))
        for node in nodes:
            if not node.accused:
                called = {rank for ranks in node.kinds.values() for rank in ranks}
                odd = sorted(self.parted.keys() & called) or self.orders.odd(called)
                self._accuse(node, odd if len(odd) < len(called) else [])

    def _accuse(self, node: Node, ranks: list[int]) -> None:
        node.accused = ranks
        others = [self.still.stands[rank].call for rank in node.inside if rank not in ranks]
        if ranks and others:  # what is shown is the call in which these wait
            node.call = min(others, key=lambda call: call.created_ns)
        for rank in ranks:
            if rank not in self.parted or self.still.nodes.get(rank) is node:
                self.parted[rank] = node

    def _find_late(self) -> None:
        """Where only younger dumps have ended a call in which others had waited for long, their
        ranks came after that. Where the others had not, their dumps are too old."""
        for node in self.nodes.values():
            if not node.ended or node.kinds:
                continue
            if not node.holders and not self.stuck(node):
                node.late = node.ended

    def stuck(self, node: Node) -> list[int]:
        """The ranks in a call that others have ended, as far as their dumps are no older."""
        written_s = {rank: self.still.dumps[rank].written_s for rank in (*node.inside, *node.ended)}
        ended_s = min(written_s[rank] for rank in node.ended)
        return [rank for rank in node.inside if written_s[rank] >= ended_s - SAME_MOMENT_S]

    def share_a_group(self, others: Iterable[int]) -> set[int]:
        """The ranks that share a group, but for that of all ranks, with one of others."""
        dumps = [self.still.dumps[rank] for rank in others if rank in self.still.dumps]
        return {
            rank
            for dump in dumps
            for name, ranks in dump.members.items()
            if name and dump.descriptions[name] != "default_pg"
            for rank in ranks
        }

    def lost_beside(self, ranks: Collection[int]) -> set[int]:
        """The other ranks without a dump in a pipeline of these, in which a rank waits for one
        other, and that one for the next."""
        groups = [group.members for group in self.still.groups.values() if group.has_peers]
        beside = {rank for own in groups if not set(own).isdisjoint(ranks) for rank in own}
        return beside.difference(ranks, self.still.dumps, self.still.gone)

    def after(self, vertex: _Vertex) -> Sequence[_Vertex]:
        if isinstance(vertex, tuple):
            return self.nodes[vertex[1]].holders
        node = self.still.nodes.get(vertex)
        if node is None or vertex in node.accused or vertex in self.parted:
            return ()
        return (("call", id(node)),)

    def waiting_for(self, ranks: Sequence[int], nodes: Sequence[Node]) -> list[int]:
        """The ranks that reach these ranks or calls."""
        found: set[int] = set()
        queue = deque([*nodes])
        seen = {id(node) for node in nodes}
        for rank in ranks:
            queue.extend(n for n in self.holds.get(rank, ()) if id(n) not in seen)
            seen.update(id(n) for n in self.holds.get(rank, ()))
        while queue:
            node = queue.popleft()
            for rank in node.inside:
                if rank in found:
                    continue
                found.add(rank)
                for other in self.holds.get(rank, ()):
                    if id(other) not in seen:
                        seen.add(id(other))
                        queue.append(other)
        return sorted(found - set(ranks))


def _group_by_kind(group: Group, seq: int) -> dict[str, list[int]]:
    kinds: dict[str, list[int]] = {}
    for rank, calls in group.calls.items():
        if kind := calls.kinds.get(seq):
            kinds.setdefault(kind, []).append(rank)
    return kinds


def find_causes(
    dumps: Sequence[Dump],
    world_size: int = 0,
    gone: Collection[int] = (),
    recorded: Mapping[int, RecordedWait] | None = None,
) -> tuple[list[Cause], Standstill]:
    """The causes, those that are sure and that explain most first. `world_size` 0: not known. gone,
    recorded: as of `Standstill`."""
    still = Standstill(dumps, find_groups(dumps, world_size), world_size, gone, recorded)
    graph = _Graph(still)
    ranks: list[_Vertex] = [*sorted(still.stands)]
    parts = last_parts(ranks, graph.after)
    ends = {vertex for part in parts if len(part) == 1 for vertex in part}
    found = (_blame(part, graph, ends) for part in parts)
    causes = _merged((one for one in found if one is not None), graph)
    causes += _without_dump(graph, causes)
    causes += _stopped(graph, causes)
    longest_s = max((cause.waited_s for cause in causes), default=0.0)
    causes = [cause for cause in causes if not _is_slow(cause, longest_s, still)]
    causes.sort(key=lambda cause: (not cause.decided, -len(cause.waiting), cause.ranks))
    return causes, still


def _is_slow(cause: Cause, longest_s: float, still: Standstill) -> bool:
    """Whether ranks wait for no longer than they do now and then, or not for long beside others."""
    dumps = still.dumps
    if cause.waited_s < max(HUNG_S, *(_usual_s(dumps[rank]) for rank in cause.direct), 0.0):
        return True
    own = [dumps[rank] for rank in cause.ranks if rank in dumps and cause.kind != "came late"]
    if own and all(idle_s(dump, cause.node.group) < max(HUNG_S, _usual_s(dump)) for dump in own):
        return True
    return longest_s >= LONG_S and cause.waited_s < SLOW_SHARE * longest_s


def _usual_s(dump: Dump) -> float:
    """For how long a rank waits now and then: a little longer than it ever has, and twice as long
    as it does again and again."""
    longest, *more = dump.pauses_s or (0.0,)
    again = more[-1] if len(more) == PAUSES_KEPT - 1 else 0.0
    return max(TIMES_LONGEST * longest, TIMES_USUAL * again)


def _blame(part: Sequence[_Vertex], graph: _Graph, ends: Set[_Vertex]) -> _Blame | None:
    """What a part that waits for nobody outside it is. `ends`: the ranks and calls that are each
    such a part."""
    ranks = sorted(vertex for vertex in part if isinstance(vertex, int))
    nodes = [graph.nodes[vertex[1]] for vertex in part if isinstance(vertex, tuple)]
    if len(part) > 1:
        return _ring(ranks, nodes, graph)
    return _inside(nodes[0], graph) if nodes else _awaited(ranks[0], graph, ends)


def _awaited(rank: int, graph: _Graph, ends: Set[_Vertex]) -> _Blame | None:
    """The call in which most such ranks are awaited; else the first one."""
    held = graph.holds.get(rank, [])
    if not held:
        return None
    node = min(
        held,
        key=lambda one: (-len(ends & set(one.holders)), bool(one.peers), one.call.created_ns),
    )
    lost = [one for one in graph.orders.odd(node.inside) if one in node.inside]
    is_known = rank in graph.still.dumps  # what it called; a dead rank may have left no dump
    if is_known and lost == sorted(node.inside) and not graph.orders.odd([rank]):
        return _Blame("other order", lost, node, held)  # nobody should be in this call
    kind = "came late" if rank in node.late else "never entered"
    if rank in graph.parted:
        node, kind = graph.parted[rank], "other path"
    if rank in graph.still.gone:
        kind = "dead"
    failed = graph.still.maybe_failed(rank)
    if failed is None:
        return _Blame(kind, [rank], node, held)
    missing = graph.still.without_dump(failed)
    if gone := [one for one in missing if one in graph.still.gone]:
        return _Blame("dead", gone, node, held)
    if len(missing) == 1:
        return _Blame("no dump", missing, node, held)
    return _Blame(kind, [rank], node, held, decided=False)


def _cause(one: _Blame, graph: _Graph) -> Cause:
    inside = {rank for held in one.held for rank in held.inside}
    stands = graph.still.stands
    return Cause(
        kind=one.kind,
        ranks=one.ranks,
        node=one.node,
        waited_s=max((stands[rank].waited_s for rank in inside if rank in stands), default=0.0),
        direct=sorted(inside - set(one.ranks)),
        waiting=graph.waiting_for(one.ranks, one.held),
        decided=one.decided,
    )


def _inside(node: Node, graph: _Graph) -> _Blame | None:
    """A call that nobody holds up."""
    if node.ended:
        ranks = graph.stuck(node)
        held = [one for rank in ranks for one in graph.holds.get(rank, ())]
        return _Blame("stuck inside", ranks, node, [node, *held])
    if node.kinds:
        called = sorted(rank for ranks in node.kinds.values() for rank in ranks)
        return _Blame("other path", called, node, [node], decided=False)
    if node.unknown or node.unclear:
        return None
    return _Blame("inside", sorted(node.members), node, [node], decided=False)


def _ring(ranks: list[int], nodes: Sequence[Node], graph: _Graph) -> _Blame | None:
    odd = graph.orders.odd(ranks) or sorted(graph.still.odd_recorded.intersection(ranks))
    node = min(nodes, key=lambda one: one.call.created_ns)
    if odd and 2 * len(odd) <= len(ranks):
        return _Blame("other order", odd, node, nodes)
    if any(one.open_to for one in nodes):
        return None
    return _Blame("ring", ranks, node, nodes, decided=False)


def _merged(blames: Iterable[_Blame], graph: _Graph) -> list[Cause]:
    """One cause of all ranks of a kind in one call. Two ranks that send and receive are in one."""
    alike: dict[object, list[_Blame]] = {}
    for one in blames:
        place = tuple(one.ranks) if one.kind == "inside" else id(one.node)
        alike.setdefault((one.kind, place), []).append(one)
    found = []
    for first, *rest in alike.values():
        if rest:
            first.ranks = sorted({rank for one in (first, *rest) for rank in one.ranks})
            held = {id(node): node for one in (first, *rest) for node in one.held}
            first.held = list(held.values())
        found.append(_cause(first, graph))
    return found


def _stopped(graph: _Graph, causes: Sequence[Cause]) -> list[Cause]:
    """Ranks that others will wait for besides, once what they wait for themselves goes on."""
    blamed = {rank for cause in causes if cause.decided for rank in cause.ranks}
    stands = graph.still.stands
    waiting = [r for r in stands if r not in blamed and stands[r].waited_s >= HUNG_S]
    found = []
    for rank in stopped_early(graph.still, waiting) if blamed else ():
        node = graph.still.nodes[rank]
        held = graph.holds.get(rank, [])
        found.append(_Blame("stopped", [rank], node, [node, *held]))
    return _merged(found, graph)


def _without_dump(graph: _Graph, causes: Sequence[Cause]) -> list[Cause]:
    """Ranks without a dump for which others wait, where nothing that is known explains it."""
    explained = {rank for cause in causes for rank in (*cause.ranks, *cause.waiting)}
    left = [rank for rank in sorted(graph.still.stands) if rank not in explained]
    nodes = {id(node): node for node in map(graph.still.nodes.__getitem__, left)}
    held_up = [node for node in nodes.values() if not node.holders]
    open_nodes = [node for node in held_up if node.unknown] or [
        node for node in held_up if graph.still.stale.intersection(node.unclear)
    ]
    if not open_nodes:
        return []
    may_wait = graph.share_a_group(explained)
    open_to = {id(node): set(node.open_to) for node in open_nodes}
    alone = set().union(*(ranks for ranks in open_to.values() if len(ranks) == 1))
    named = sorted((alone or set().union(*open_to.values())) - may_wait)
    held = [node for node in open_nodes if not may_wait.issuperset(open_to[id(node)])]
    if not named or not held:
        return []
    odd = graph.orders.odd(left)
    found = [_Blame("other order", odd, held[0], held, decided=False)] if odd else []
    may_hold = {rank for rank in graph.still.idle if rank not in explained}
    may_hold.update(rank for rank in graph.lost_beside(named) if rank not in may_wait)
    may_hold.update(graph.still.dumps.keys() & named)  # which do not say it
    is_clear = not (odd or may_hold) and len(named) == 1 and all(one.decided for one in causes)
    named = sorted({*named, *may_hold})  # those without a dump may wait for one another, too
    found.append(_Blame("no dump", named, held[0], held, decided=is_clear))
    return [_cause(one, graph) for one in found]
