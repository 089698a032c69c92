"""Who is compared with whom: the ranks of a role, and groups that meet in the same way."""

from __future__ import annotations

import numpy as np

from .graph import Graph
from .operations import Flags, Floats, Ints, count_before, number_rows
from .peers import Groups

ALIKE = 0.5  # of the names of two ranks, that they share
ALL = slice(None)


class Links:
    """Groups that meet. group: of each meeting; members: the ranks of each group."""

    def __init__(self, graph: Graph) -> None:
        order = np.lexsort((graph.rank[graph.member_node], graph.member_meeting))
        meeting = graph.member_meeting[order]
        rank = graph.rank[graph.member_node][order]
        count = len(graph.meeting_name)
        firsts = np.searchsorted(meeting, np.arange(count))
        sizes = np.diff(np.r_[firsts, len(meeting)])
        marks = np.random.default_rng(1).integers(0, 1 << 62, int(rank.max(initial=0)) + 1)
        mark = np.add.reduceat(marks[rank], firsts)
        _, one_of, self.group = np.unique(mark, return_index=True, return_inverse=True)
        self.members = [
            tuple(rank[firsts[one] : firsts[one] + sizes[one]].tolist()) for one in one_of.tolist()
        ]
        at = np.searchsorted(graph.member_meeting, np.arange(count))
        begun = np.lexsort((graph.begin_ns[graph.member_node[at]], graph.meeting_step))
        which, _ = number_rows(self.group, graph.meeting_step, graph.meeting_name)
        occurrence = np.empty(count, np.int64)
        occurrence[begun] = count_before(which[begun])
        peers, number = number_rows(graph.meeting_step, graph.meeting_name, occurrence, sizes)
        self._peers = Groups(peers, number)
        self._all = Groups(*number_rows(graph.meeting_name, occurrence, sizes))
        self._same, sames = number_rows(self.group, graph.meeting_name, occurrence)
        self._over_steps = Groups(self._same, sames)

    def usual(self, transfer: Floats) -> Floats:
        """What each kind of meeting takes in the median over its groups and all steps."""
        return self._all.medians(transfer)[self._all.number]

    def lasting(self, transfer: Floats) -> Floats:
        """What each meeting takes longer than those of other groups of its size, lastingly."""
        excess = transfer - self._peers.others(transfer)
        return self._over_steps.medians(excess)[self._same]


class Roles:
    """Who is compared with whom: the ranks of a role do the same work, each on its share.

    A role is a pipeline stage where stages are known, else those that meet in the same operations
    and have most of all others in common: one rank of them may write logs or evaluate.
    """

    def __init__(self, graph: Graph, stages: dict[int, int], hosts: dict[int, str]) -> None:
        self.ranks, index = np.unique(graph.rank, return_inverse=True)
        self.rank_index = index.astype(np.int32)
        self.kind = graph.kind
        known = [stages.get(int(rank), -1) for rank in self.ranks]
        self.are_stages = -1 not in known
        if self.are_stages:
            self.names, self.role_of_rank = np.unique(known, return_inverse=True)
        else:
            self.role_of_rank = _alike(self._has(graph.name), self._has(graph.name, graph.meets))
            self.names = np.unique(self.role_of_rank)
        self.place_of_rank = count_before(self.role_of_rank)
        self.role = self.role_of_rank.astype(np.int32)[self.rank_index]
        self.host_of_rank = [hosts.get(int(rank), "") for rank in self.ranks]
        self.peers = Groups(*number_rows(self.role, graph.step, self.kind))
        self.is_alone = (
            np.bincount(self.peers.number, minlength=self.peers.count)[self.peers.number] == 1
        )
        self.keys = Groups(graph.key, graph.keys)
        self.links = Links(graph) if len(graph.meeting_name) else None

    def _has(self, name: Ints, rows: Flags | slice = ALL) -> Flags:
        """Ranks × names: whether a rank has that name in one of these rows."""
        found = np.zeros((len(self.ranks), int(name.max(initial=0)) + 1), np.bool_)
        found[self.rank_index[rows], name[rows]] = True
        return found

    def alone_on(self, members: list[int]) -> bool:
        """Whether a role is there as a whole, so that its ranks have no peers elsewhere."""
        sizes = np.bincount(self.role_of_rank)
        there = np.bincount(self.role_of_rank[members], minlength=len(sizes))
        return bool((there[there > 0] == sizes[there > 0]).any())


def _alike(names: Flags, meets: Flags) -> Ints:
    """A number for each rank, the same where the names are alike. names: ranks × names; meets:
    those at which ranks meet.

    >>> names = np.array([[1, 1, 1, 0], [1, 1, 1, 1], [0, 1, 1, 1]], np.bool_)
    >>> _alike(names, names[:, :1]).tolist(), _alike(names[[0, 1]], names[[0, 1], :1]).tolist()
    ([1, 1, 0], [0, 0])
    """
    kinds, kind = np.unique(names, axis=0, return_inverse=True)
    first = np.unique(kind, return_index=True)[1]
    size = np.bincount(kind.ravel())
    roles: list[int] = []
    role = np.zeros(len(kinds), np.int64)
    for one in np.argsort(-size, kind="stable").tolist():
        for number, other in enumerate(roles):
            shared = (kinds[one] & kinds[other]).sum()
            if (meets[first[one]] == meets[first[other]]).all() and shared > ALIKE * (
                kinds[one] | kinds[other]
            ).sum():
                role[one] = number
                break
        else:
            role[one] = len(roles)
            roles.append(one)
    found: Ints = role[kind.ravel()]
    return found
