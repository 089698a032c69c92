"""Who is compared with whom: the ranks of a role, and groups that meet in the same way."""

from __future__ import annotations

import numpy as np

from .graph import Graph
from .operations import Floats, numbers_of, occurrence_of
from .peers import Groups


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
        which, _ = numbers_of(self.group, graph.meeting_step, graph.meeting_name)
        occurrence = np.empty(count, np.int64)
        occurrence[begun] = occurrence_of(which[begun])
        peers, number = numbers_of(graph.meeting_step, graph.meeting_name, occurrence, sizes)
        self._peers = Groups(peers, number)
        self._all = Groups(*numbers_of(graph.meeting_name, occurrence, sizes))
        self._same, sames = numbers_of(self.group, graph.meeting_name, occurrence)
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

    A role is a pipeline stage where stages are known, else those with the same operations.
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
            marks = np.random.default_rng(2).random(len(graph.names))
            seen, _ = numbers_of(self.rank_index, graph.name)
            once = np.unique(seen, return_index=True)[1]
            mark = np.bincount(self.rank_index[once], marks[graph.name[once]], len(self.ranks))
            self.names, self.role_of_rank = np.unique(mark.round(9), return_inverse=True)
        self.place_of_rank = occurrence_of(self.role_of_rank)
        self.role = self.role_of_rank.astype(np.int32)[self.rank_index]
        self.host_of_rank = [hosts.get(int(rank), "") for rank in self.ranks]
        self.peers = Groups(*numbers_of(self.role, graph.step, self.kind))
        self.is_alone = (
            np.bincount(self.peers.number, minlength=self.peers.count)[self.peers.number] == 1
        )
        self.keys = Groups(graph.key, graph.keys)
        self.links = Links(graph) if len(graph.meeting_name) else None

    def alone_on(self, members: list[int]) -> bool:
        """Whether a role is there as a whole, so that its ranks have no peers elsewhere."""
        sizes = np.bincount(self.role_of_rank)
        there = np.bincount(self.role_of_rank[members], minlength=len(sizes))
        return bool((there[there > 0] == sizes[there > 0]).any())
