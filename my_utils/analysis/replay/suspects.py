"""Who could be to blame, and which work each would then do less."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from ..verdict.change_points import SEGMENT_MIN, largest_rise
from ..verdict.kinds import kind_of_stage
from ..verdict.quantiles import MAD_TO_SIGMA
from .engine import Chain
from .graph import Graph, Weights
from .operations import Flags, Floats, Ints, number_rows
from .peers import Groups
from .roles import Roles

Claim = Literal[
    "slow rank", "slow host", "slow stage", "slow link", "steps that stick out",
    "imbalance that moves", "slower since", "slower over time", "checkpoint", "eval", "input",
]  # fmt: skip

MOST, HALF = 0.2, 0.4  # in all but so many steps a lasting excess is at least so much of the usual
TOGETHER_TIMES = 3.0  # as much more than one by one may ranks save together
SET_MAX = 8  # ranks that are named one by one
SET_SHARE = 0.3  # of the excess of the first rank: so much a further one of a set has
MOVES = 0.25  # of what a rank is longer in a step: so much its operations are not, each by itself
STICKS_OUT = 6.0  # times the scatter
STICKS_OUT_SHARE = 0.05  # of a step
SELDOM = 0.34  # of the steps: what is longer in more of them does not stick out, but is a level
LEVEL_MIN = 5  # steps of a level
BELOW = 0.5  # of the upper level: so far below nothing the lower one may be
CHANCE = 5e-3  # of seeing a change where there is none
MONOTONE = 0.7  # how closely a trend follows the number of the step
IN_COMMON = 0.6  # of the variance of micro-batches: so much is the same on all their stages
FREE = ("checkpoint", "eval", "input")  # kinds that can be asked without


@dataclass
class Cut:
    """What is taken off: of nodes their own time and the time before them, of meetings transfer."""

    nodes: Ints | slice
    own: Floats
    gap: Floats
    meetings: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    transfer: Floats = field(default_factory=lambda: np.zeros(0))

    def applied(self, weights: Weights) -> Weights:
        own, gap, transfer = weights.own.copy(), weights.gap.copy(), weights.transfer.copy()
        own[self.nodes] = _less(own[self.nodes], self.own)
        gap[self.nodes] = _less(gap[self.nodes], self.gap)
        transfer[self.meetings] = _less(transfer[self.meetings], self.transfer)
        return Weights(own, gap, transfer)


def _less(values: Floats, cut: Floats) -> Floats:
    """Not below nothing."""
    return np.where(cut > 0, np.maximum(values - cut, np.minimum(values, 0.0)), values - cut)


@dataclass
class Suspect:
    """size: how much has to be assumed; of two that save as much the smaller one is believed."""

    claim: Claim
    size: float
    cut: Cut
    ranks: tuple[int, ...] = ()
    host: str | None = None
    since: int | None = None  # an index of a step
    steps: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    noise: Callable[[], tuple[Weights, Cut]] | None = None  # the same cut where all is noise


class Bench:
    """What all suspects are drawn from, for one state of the weights."""

    def __init__(
        self, graph: Graph, weights: Weights, roles: Roles, chain: Chain, least: float
    ) -> None:
        """chain: the longest one with these weights. least: what a suspect must save, ns."""
        self.graph, self.weights, self.roles, self.least = graph, weights, roles, least
        self.own = self._apart(weights.own)
        self.gap = self._apart(weights.gap)
        ranks, steps = len(roles.ranks), len(graph.steps)
        self.cells = (roles.rank_index.astype(np.int64) * steps + graph.step).astype(np.int32)
        apart = np.bincount(self.cells, self.own + self.gap, ranks * steps)
        self.apart = apart.reshape(ranks, steps)
        of_ranks = self._lasts()
        at_times = np.zeros(self.apart.shape, np.bool_)  # longer than the peers, a level
        for member in np.flatnonzero(~of_ranks).tolist():
            at_times[member] = _of_two_levels(self.apart[member], self._least_apart())
        # in nearly each step some rank is longer, and no single one in most
        self.takes_turns = bool(at_times.any(axis=0).mean() > 1 - MOST)
        swings = [_swings(*one) for one in zip(self.apart, at_times, strict=True)]
        self.at_times = at_times & ~np.array(swings)[:, None]
        lasts = of_ranks[roles.rank_index]
        self.lasting_own = roles.keys.medians(self.own).astype(np.float32)[graph.key] * lasts
        self.lasting_gap = roles.keys.medians(self.gap).astype(np.float32)[graph.key] * lasts
        lasting = self.lasting_own + self.lasting_gap
        self.excess = np.bincount(roles.rank_index, lasting, ranks) / steps
        own, gap = self.lasting_own[chain.own], self.lasting_gap[chain.gap]
        self.on_chain = np.bincount(roles.rank_index[chain.own], own, ranks)
        self.on_chain += np.bincount(roles.rank_index[chain.gap], gap, ranks)

    def _lasts(self) -> Flags:
        """The ranks that are apart from their peers in most steps, to either side."""
        low, middle, high = np.quantile(self.apart, (MOST, 0.5, 1 - MOST), axis=1)
        lasts: Flags = np.where(middle > 0, low >= HALF * middle, high <= HALF * middle)
        return lasts

    def _apart(self, values: Floats) -> Floats:
        """How far they are from those of the peers; where there is none from what is usual."""
        usual = self.roles.peers.others(values)
        alone = self.roles.is_alone
        if alone.any():
            usual = np.where(alone, self.roles.keys.medians(values)[self.graph.key], usual)
        return (values - usual).astype(np.float32)

    def suspects(self) -> Iterator[Suspect]:
        """The smaller ones first, as far as that is known."""
        yield from self._ranks()
        yield from self._hosts()
        yield from self._stages()
        yield from self._links()
        yield from self._hiccups()
        yield from self._kinds()
        yield from self._over_time()
        yield from self._moving()

    # --- ranks ---

    def _ranks(self) -> Iterator[Suspect]:
        order = np.argsort(-self.excess, kind="stable")
        likely = [int(one) for one in order[:SET_MAX] if self.excess[one] > 0]
        for one in likely:
            if self._can_save([one]):
                yield self._of_ranks([one], "slow rank", 1.0)
        yield from self._as_a_whole()
        behind = self.apart.mean(axis=1)
        for one in np.argsort(-behind, kind="stable")[:SET_MAX].tolist():
            if behind[one] > 0:
                yield from self._since(one)
        for count in range(2, len(likely) + 1):
            if self.excess[likely[count - 1]] < SET_SHARE * self.excess[likely[0]]:
                break
            if self._can_save(likely[:count]):
                yield self._of_ranks(likely[:count], "slow rank", float(count))

    def _can_save(self, members: list[int]) -> bool:
        """Whether it is worth a closer look: alone, ranks save what they are longer on the longest
        chain at most; together more, as they are not compared with each other then."""
        times = 1.0 if len(members) == 1 else TOGETHER_TIMES
        return times * float(np.maximum(self.on_chain[members], 0.0).sum()) >= self.least

    def _hosts(self) -> Iterator[Suspect]:
        hosts = self.roles.host_of_rank
        if len(set(hosts)) < 2:
            return
        by_host: dict[str, list[int]] = {}
        for index, host in enumerate(hosts):
            by_host.setdefault(host, []).append(index)
        worst = sorted(by_host, key=lambda host: -float(self.excess[by_host[host]].mean()))
        for host in worst[:SET_MAX]:
            alike = self.roles.are_stages and self.roles.alone_on(by_host[host])
            if len(by_host[host]) > 1 and (alike or self._can_save(by_host[host])):
                suspect = self._of_ranks(by_host[host], "slow host", 1.2)
                suspect.host = host
                yield suspect

    def _of_ranks(self, members: list[int], claim: Claim, size: float) -> Suspect:
        """members: indices of ranks. They are compared with the others of their roles."""
        roles = self.roles
        chosen = np.zeros(len(roles.ranks), np.bool_)
        chosen[members] = True
        nodes = np.flatnonzero(chosen[roles.rank_index])
        ranks = tuple(int(roles.ranks[one]) for one in members)
        if len(members) == 1:
            own, gap = self.lasting_own[nodes], self.lasting_gap[nodes]
        else:
            own, gap = self._against_others(chosen, nodes)
        return Suspect(claim, size, Cut(nodes, own, gap), tuple(sorted(ranks)))

    def _against_others(self, chosen: Flags, nodes: Ints) -> tuple[Floats, Floats]:
        roles = self.roles
        involved = np.zeros(len(roles.role_of_rank), np.bool_)
        involved[np.unique(roles.role_of_rank[chosen])] = True
        rest = np.flatnonzero(involved[roles.role] & ~chosen[roles.rank_index])
        group = roles.peers.number
        number, count = number_rows(np.concatenate([group[nodes], group[rest]]))
        mine, theirs = number[: len(nodes)], number[len(nodes) :]
        groups = Groups(theirs, count)
        has_peers = np.bincount(theirs, minlength=count) > 0
        elsewhere = None
        if roles.are_stages and not has_peers[mine].all():
            outside = np.flatnonzero(~chosen[roles.rank_index])
            number, count = number_rows(
                np.concatenate([self.graph.step[nodes], self.graph.step[outside]]),
                np.concatenate([roles.kind[nodes], roles.kind[outside]]),
            )
            like, elsewhere = number[: len(nodes)], Groups(number[len(nodes) :], count)
            known = np.bincount(number[len(nodes) :], minlength=count) > 0
        key, keys = number_rows(self.graph.key[nodes])
        by_key = Groups(key, keys)
        found = []
        for values in (self.weights.own, self.weights.gap):
            peers = groups.medians(values[rest])[mine]
            excess = np.where(has_peers[mine], values[nodes] - peers, 0.0)
            if elsewhere is not None:
                peers = elsewhere.medians(values[outside])[like]
                excess = np.where(has_peers[mine] | ~known[like], excess, values[nodes] - peers)
            found.append(by_key.medians(excess)[key])
        return found[0], found[1]

    def _as_a_whole(self) -> Iterator[Suspect]:
        """Ranks that are as much longer in each step, but in one operation now and in another one
        then, so that they are not longer by what is usual for each of these."""
        usual = np.where(self._lasts(), np.median(self.apart, axis=1), 0.0)
        steady = [
            np.clip(values, 0.0, np.maximum(lasting, 0.0))
            for values, lasting in ((self.own, self.lasting_own), (self.gap, self.lasting_gap))
        ]
        steps, rank = len(self.graph.steps), self.roles.rank_index
        moves = np.bincount(rank, sum(steady), len(usual)) < (1 - MOVES) * usual * steps
        for member in np.argsort(-usual, kind="stable")[:SET_MAX].tolist():
            if not moves[member] or usual[member] * steps < self.least:
                continue
            nodes = np.flatnonzero(rank == member)
            own, gap = np.maximum(self.own[nodes], 0.0), np.maximum(self.gap[nodes], 0.0)
            longer = np.bincount(self.graph.step[nodes], own + gap, steps)
            kept = np.clip(self.apart[member], 0.0, usual[member]) / np.maximum(longer, 1.0)
            part = kept[self.graph.step[nodes]]
            ranks = (int(self.roles.ranks[member]),)
            yield Suspect("slow rank", 1.02, Cut(nodes, own * part, gap * part), ranks)

    def _since(self, member: int) -> Iterator[Suspect]:
        """The rank is slow from a step on."""
        at = largest_rise(self.apart[member], CHANCE)
        if at is None:
            return
        nodes = np.flatnonzero(self.roles.rank_index == member)
        yield self._changed(nodes, at, (self.own, self.gap), "slow rank", 1.05, (member,))

    def _changed(
        self, nodes: Ints, at: int, values: tuple[Floats, Floats], claim: Claim, size: float,
        members: tuple[int, ...],
    ) -> Suspect:  # fmt: skip
        graph = self.graph
        later = graph.step[nodes] >= at
        key, keys = number_rows(graph.key[nodes])
        before, after = Groups(key[~later], keys), Groups(key[later], keys)
        cuts = [
            (after.medians(one[nodes][later]) - before.medians(one[nodes][~later]))[key[later]]
            for one in values
        ]
        ranks = tuple(int(self.roles.ranks[one]) for one in members)
        return Suspect(claim, size, Cut(nodes[later], *cuts), ranks, since=at)

    # --- stages and links ---

    def _stages(self) -> Iterator[Suspect]:
        roles, graph = self.roles, self.graph
        if not roles.are_stages or len(roles.names) < 2:
            return
        of_stage, count = roles.peers.number, roles.peers.count
        first = np.zeros(count, np.int64)
        first[of_stage] = np.arange(len(of_stage))
        group, groups = number_rows(graph.step[first], roles.kind[first])
        across = Groups(group, groups)
        same, sames = number_rows(roles.role[first], roles.kind[first])
        over_steps = Groups(same, sames)
        cuts = []
        for values in (self.weights.own, self.weights.gap):
            middle = roles.peers.medians(values)
            excess = over_steps.medians(middle - across.others(middle))[same]
            cuts.append(excess[of_stage])
        for role in range(len(roles.names)):
            nodes = np.flatnonzero(roles.role == role)
            cut = Cut(nodes, cuts[0][nodes], cuts[1][nodes])
            ranks = tuple(roles.ranks[roles.role_of_rank == role].tolist())
            yield Suspect("slow stage", 1.1, cut, ranks)

    def _links(self) -> Iterator[Suspect]:
        links = self.roles.links
        if links is None:
            return
        nobody = np.zeros(0, np.int64)
        nothing = np.zeros(0)
        excess = links.lasting(self.weights.transfer)
        total = np.bincount(links.group, excess, len(links.members))
        for one in np.argsort(-total, kind="stable")[:SET_MAX].tolist():
            if total[one] > 0:
                meetings = np.flatnonzero(links.group == one)
                cut = Cut(nobody, nothing, nothing, meetings, excess[meetings])
                yield Suspect("slow link", 1.15, cut, links.members[one])

    # --- steps ---

    def _hiccups(self) -> Iterator[Suspect]:
        """Steps in which one rank is longer than usually, or all are."""
        roles = self.roles
        usual = self.apart - np.median(self.apart, axis=1, keepdims=True)
        sigma = MAD_TO_SIGMA * np.median(np.abs(usual), axis=1, keepdims=True)
        out = usual > np.maximum(STICKS_OUT * sigma, self._least_apart())
        out &= (out.mean(axis=1) <= SELDOM)[:, None]
        if not self.takes_turns:
            out |= self.at_times
            usual = np.where(self.at_times, self.apart, usual)
        for member in np.flatnonzero(out.any(axis=1)).tolist():
            out[member] &= not _is_block(np.flatnonzero(out[member]))
        rest = (self.own - self.lasting_own, self.gap - self.lasting_gap)
        cost = np.where(out, usual, 0.0).sum(axis=1)
        for member in np.argsort(-cost, kind="stable")[:SET_MAX].tolist():
            if cost[member] > 0:
                alone = np.zeros_like(out)
                alone[member] = out[member]
                yield self._in_cells(alone, rest, 1.1, (int(roles.ranks[member]),))
        several = cost >= SET_SHARE * cost.max()
        out &= several[:, None]
        if np.count_nonzero(out.any(axis=1)) > 1 and out.any(axis=0).mean() <= SELDOM:
            yield self._in_cells(out, rest, 2.0, ())
        yield from self._long_steps()

    def _least_apart(self) -> float:
        return STICKS_OUT_SHARE * float(np.median(self.graph.step_ns))

    def _in_cells(
        self, cells: Flags, values: tuple[Floats, Floats], size: float, ranks: tuple[int, ...]
    ) -> Suspect:
        nodes = np.flatnonzero(cells.ravel()[self.cells])
        cut = Cut(nodes, values[0][nodes], values[1][nodes])
        steps = np.flatnonzero(cells.any(axis=0))
        return Suspect("steps that stick out", size, cut, ranks, steps=steps)

    def _long_steps(self) -> Iterator[Suspect]:
        graph = self.graph
        length = self._work_of_steps()
        middle = float(np.median(length))
        sigma = MAD_TO_SIGMA * float(np.median(np.abs(length - middle)))
        out = length > middle + max(STICKS_OUT * sigma, STICKS_OUT_SHARE * middle)
        if not out.any() or out.mean() > SELDOM or _is_block(np.flatnonzero(out)):
            return
        nodes = np.flatnonzero(out[graph.step])
        keys = self.roles.keys
        cut = Cut(
            nodes,
            (self.weights.own - keys.medians(self.weights.own)[graph.key])[nodes],
            (self.weights.gap - keys.medians(self.weights.gap)[graph.key])[nodes],
        )
        yield Suspect("steps that stick out", 2.1, cut, (), steps=np.flatnonzero(out))

    def _work_of_steps(self) -> Floats:
        work = self.weights.own + self.weights.gap
        return np.bincount(self.graph.step, work, len(self.graph.steps)) / len(self.roles.ranks)

    def _over_time(self) -> Iterator[Suspect]:
        graph = self.graph
        length = self._work_of_steps()
        values = (self.weights.own, self.weights.gap)
        at = largest_rise(length, CHANCE)
        if at is None:
            return
        if _follows(length) < MONOTONE or _jumps(length, at):
            everyone = np.arange(len(graph.rank))
            yield self._changed(everyone, at, values, "slower since", 2.0, ())
            return
        third = len(length) // 3
        early, late = graph.step < third, graph.step >= len(length) - third
        place = graph.step / (len(length) - third)
        cuts = []
        for one in values:
            first = Groups(graph.key[early], graph.keys).medians(one[early])
            last = Groups(graph.key[late], graph.keys).medians(one[late])
            cuts.append((last - first)[graph.key] * place)
        yield Suspect("slower over time", 2.05, Cut(slice(None), *cuts), (), since=0)

    def _kinds(self) -> Iterator[Suspect]:
        """Without checkpoints, without evaluation, without input."""
        graph = self.graph
        kinds = np.array([kind_of_stage(name) or "" for name in graph.names])
        for kind in FREE:
            nodes = np.flatnonzero((kinds == kind)[graph.name])
            meetings = np.flatnonzero((kinds == kind)[graph.meeting_name])
            if len(nodes) or len(meetings):
                own, gap = self.weights.own[nodes], np.zeros(len(nodes))
                cut = Cut(nodes, own, gap, meetings, self.weights.transfer[meetings])
                steps = np.unique(graph.step[nodes])
                yield Suspect(kind, 1.0, cut, (), steps=steps)  # type: ignore[arg-type]

    def _moving(self) -> Iterator[Suspect]:
        """The work of a role spread evenly over its ranks, step by step."""
        lasting = Weights(
            self.weights.own - self.lasting_own, self.weights.gap - self.lasting_gap,
            self.weights.transfer,
        )  # fmt: skip
        yield Suspect(
            "imbalance that moves", 4.0, self._evening(lasting),
            noise=None if self.takes_turns else lambda: self._only_noise(lasting),
        )  # fmt: skip

        yield from self._micro_batches()

    def _micro_batches(self) -> Iterator[Suspect]:
        """What a micro-batch takes longer on all stages that it passes, spread over the others."""
        roles, graph, own = self.roles, self.graph, self.weights.own
        if not roles.are_stages or len(roles.names) < 2:
            return
        works = np.flatnonzero(~graph.meets & (own > graph.tolerance_ns))
        alike, count = number_rows(roles.role[works], graph.step[works], graph.name[works])
        mean = np.bincount(alike, own[works], count) / np.bincount(alike, minlength=count)
        apart = own[works] / mean[alike] - 1
        place = roles.place_of_rank[roles.rank_index[works]]
        batch, batches = number_rows(place, graph.step[works], roles.kind[works])
        passed = np.bincount(batch, minlength=batches)
        common = (np.bincount(batch, apart, batches) / passed)[batch]
        shared = passed[batch] > 1
        noise = float(np.mean(apart[shared] ** 2)) if shared.any() else 0.0
        if noise == 0.0 or float(np.mean(common[shared] ** 2)) < IN_COMMON * noise:
            return
        off = np.where(shared, own[works] * common / np.maximum(1 + common, 0.1), 0.0)
        yield Suspect("imbalance that moves", 4.1, Cut(works, off, np.zeros(len(works))), ())

    def _only_noise(self, lasting: Weights) -> tuple[Weights, Cut]:
        """Noise is uneven, too: what spreading it would save is known from the same times, without
        what is common to a rank in a step, and those of each operation moved on by as many steps as
        chance has it."""
        work = self._work_of_cells(lasting)
        even = work.mean(axis=1, keepdims=True) / np.maximum(work, 1.0)
        level = even.astype(np.float32).ravel()[self.cells]
        moved = self.roles.keys.turned(np.random.default_rng(3))
        own, gap = (
            (values * level).astype(np.float32)[moved] for values in (lasting.own, lasting.gap)
        )
        noise = Weights(own, gap, lasting.transfer)
        return noise, self._evening(noise)

    def _work_of_cells(self, weights: Weights) -> Floats:
        """Ranks × steps."""
        shape = self.apart.shape
        return np.bincount(self.cells, weights.own + weights.gap, self.apart.size).reshape(shape)

    def _evening(self, weights: Weights) -> Cut:
        """What the ranks of a role with more to do in a step than the mean give away."""
        roles = self.roles
        work = self._work_of_cells(weights)
        even = np.empty_like(work)
        for role in range(len(roles.names)):
            members = roles.role_of_rank == role
            even[members] = work[members].mean(axis=0)
        share = np.where(work > 0, 1 - even / np.maximum(work, 1.0), 0.0)
        share = share.astype(np.float32).ravel()[self.cells]
        own, gap = (weights.own * share), (weights.gap * share)
        return Cut(slice(None), own.astype(np.float32), gap.astype(np.float32))


def _follows(values: Floats) -> float:
    """How closely the order of the values is that of their places, from -1 to 1."""
    places = np.argsort(np.argsort(values, kind="stable"), kind="stable")
    return float(np.corrcoef(places, np.arange(len(values)))[0, 1])


def _of_two_levels(values: Floats, least: float) -> Flags:
    """Those of the upper one of two levels that both are frequent: what is between them is wider
    than the lower one, or than its scatter allows. least: how far the upper one is at least above
    the other one, and above nothing.

    >>> _of_two_levels(np.array([1.0, 61, 2, 60, 1, 59, 2, 62, 1, 60]), 5.0).tolist()
    [False, True, False, True, False, True, False, True, False, True]
    >>> _of_two_levels(np.arange(10.0), 0.5).any()
    np.False_
    """
    ordered = np.sort(values)
    fewest = max(int(np.ceil(MOST * len(values))), LEVEL_MIN)
    most = len(values) - fewest
    if most < fewest:
        return np.zeros(len(values), np.bool_)
    calm = fewest + int(np.argmax(np.diff(ordered[fewest - 1 : most + 1])))
    middle = float(np.median(ordered[:calm]))
    sigma = MAD_TO_SIGMA * float(np.median(np.abs(ordered[:calm] - middle)))
    apart = min(middle + STICKS_OUT * sigma, float(2 * ordered[calm - 1] - ordered[0]))
    limit = max(apart, middle + least, least)
    return values >= ordered[calm] if ordered[calm] > limit else np.zeros(len(values), np.bool_)


def _swings(values: Floats, upper: Flags) -> bool:
    """Whether the level below the upper one is far below nothing: there the peers are longer.

    >>> _swings(np.array([30.0, -30, 31, -29]), np.array([True, False, True, False]))
    True
    """
    if not upper.any():
        return False
    return bool(np.median(values[~upper]) < -BELOW * np.median(values[upper]))


def _is_block(steps: Ints) -> bool:
    """Whether so many are side by side that it is another level."""
    return len(steps) >= SEGMENT_MIN and steps[-1] - steps[0] < 1.25 * len(steps)


def _jumps(values: Floats, at: int) -> bool:
    """Whether two levels fit better than a line."""
    levels = np.where(np.arange(len(values)) < at, np.median(values[:at]), np.median(values[at:]))
    third = len(values) // 3
    first, last = np.median(values[:third]), np.median(values[-third:])
    slope = (last - first) / (len(values) - third)
    line = (first + last) / 2 + slope * (np.arange(len(values)) - (len(values) - 1) / 2)
    return bool(np.abs(values - levels).sum() <= np.abs(values - line).sum())
