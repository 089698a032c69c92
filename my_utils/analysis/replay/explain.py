"""What costs a run its time: suspects one after the other, the one that explains most first."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from .engine import Chain, critical_chain, lengths, replay
from .graph import Graph, Weights
from .operations import Floats, number_rows
from .peers import Groups
from .roles import Roles
from .suspects import Bench, Cut, Suspect

LEAST = 0.05  # of a step: what saves less is not said
LEAST_LATER = 0.03
NEARLY = 0.8  # of what the best suspect saves
FINDINGS_MAX = 5
NOISY = 0.5  # of the least saving: so much is left without what noise would save
NEEDED = ("input",)
SELDOM = ("steps that stick out", "checkpoint", "eval")  # a draw of steps may have none of them
DRAWS = 1000
INTERVAL = (2.5, 97.5)


@dataclass
class Explained:
    """suspect: what was taken off. saving: of each step, ns. low, high: the interval of the mean
    saving as a share of the measured steps. where: names of operations, and which share of the
    time on the longest chain that was taken off was in them.
    weights: what everything took before.
    """

    suspect: Suspect
    saving: Floats
    share: float
    low: float
    high: float
    weights: Weights
    where: list[tuple[str, float]] = field(default_factory=list)


def explain(graph: Graph, roles: Roles, least: float = LEAST) -> tuple[list[Explained], float]:
    """The findings, the most costly first as they were taken off, and the share of the steps that
    nothing explains although equal ranks and equal steps would not have it. least: the share of a
    step that the first finding costs at least."""
    weights = graph.weights
    measured = max(float(graph.step_ns.mean()), 1.0)
    found: list[Explained] = []
    for _ in range(FINDINGS_MAX):
        best = _best(graph, weights, roles, LEAST_LATER if found else least)
        if best is None:
            break
        weights = best.suspect.cut.applied(weights)
        found.append(best)
    left = lengths(graph, replay(graph, weights))
    ideal = lengths(graph, replay(graph, _evened(graph, weights, roles)))
    return found, max(float((left - ideal).mean()) / measured, 0.0)


def _best(graph: Graph, weights: Weights, roles: Roles, least: float) -> Explained | None:
    times = replay(graph, weights)
    base = lengths(graph, times)
    chain = critical_chain(graph, times)
    measured = graph.step_ns
    tried: list[tuple[float, Suspect, Floats]] = []
    most = 0.0
    bench = Bench(graph, weights, roles, chain, least * float(measured.sum()))
    for suspect in bench.suspects():
        needed = max(least * measured.sum(), NEARLY * most)
        if _bound(graph, chain, suspect.cut) < needed:
            continue
        saving = base - lengths(graph, replay(graph, suspect.cut.applied(weights)))
        total = float(saving.sum())
        if total < needed:
            continue
        if suspect.noise is not None:
            noise = _of_noise(graph, suspect.noise())
            total -= noise
            if total < max(NOISY * needed, noise):
                continue
        tried.append((total, suspect, saving))
        most = max(most, total if suspect.claim not in NEEDED else 0.0)
    needless = [one for one in tried if one[1].claim not in NEEDED]
    if needless:  # input is work that has to be done: it is named where nothing else is
        most = max(one[0] for one in needless)
    good = [one for one in needless or tried if one[0] >= NEARLY * most]
    for _, suspect, saving in sorted(good, key=lambda one: (one[1].size, -one[0])):
        explained = _with_interval(graph, weights, chain, suspect, saving)
        if explained.low > 0 or suspect.claim in SELDOM:
            return explained
    return None


def _of_noise(graph: Graph, noise: tuple[Weights, Cut]) -> float:
    """What the same cut saves where there is nothing but noise."""
    weights, cut = noise
    before, after = (lengths(graph, replay(graph, one)) for one in (weights, cut.applied(weights)))
    return max(float((before - after).sum()), 0.0)


def _bound(graph: Graph, chain: Chain, cut: Cut) -> float:
    """No more than this can be saved: the longest chain stays at least as long as it is without
    what is taken off it."""
    own, gap = np.zeros(len(graph.rank)), np.zeros(len(graph.rank))
    own[cut.nodes], gap[cut.nodes] = cut.own, cut.gap
    bound = float(own[chain.own].sum() + gap[chain.gap].sum())
    if len(cut.meetings):
        transfer = np.zeros(len(graph.meeting_name))
        transfer[cut.meetings] = cut.transfer
        bound += float(transfer[chain.transfer].sum())
    return bound


def _with_interval(
    graph: Graph, weights: Weights, chain: Chain, suspect: Suspect, saving: Floats
) -> Explained:
    steps = len(saving)
    draws = np.random.default_rng(30).multinomial(steps, np.full(steps, 1 / steps), DRAWS)
    shares = (draws @ saving) / np.maximum(draws @ graph.step_ns, 1.0)
    low, high = np.percentile(shares, INTERVAL)
    share = float(saving.sum() / max(graph.step_ns.sum(), 1.0))
    where = _where(graph, chain, suspect.cut)
    return Explained(suspect, saving, share, float(low), float(high), weights, where)


def _where(graph: Graph, chain: Chain, cut: Cut) -> list[tuple[str, float]]:
    found = np.zeros(len(graph.names))
    values = np.zeros(len(graph.rank))
    values[cut.nodes] = np.maximum(cut.own, 0.0)
    found += np.bincount(graph.name[chain.own], values[chain.own], len(found))
    values[cut.nodes] = np.maximum(cut.gap, 0.0)
    before = np.bincount(graph.name[chain.gap], values[chain.gap], len(found))
    transfer = np.zeros(len(graph.meeting_name))
    transfer[cut.meetings] = np.maximum(cut.transfer, 0.0)
    met = transfer[chain.transfer]
    found += np.bincount(graph.meeting_name[chain.transfer], met, len(found))
    parts = [(graph.names[one], found[one]) for one in np.flatnonzero(found)]
    parts += [(f"before {graph.names[one]}", before[one]) for one in np.flatnonzero(before)]
    total = sum(value for _, value in parts) or 1.0
    parts.sort(key=lambda part: -part[1])
    return [(name, float(value / total)) for name, value in parts[:3] if value >= 0.05 * total]


def _evened(graph: Graph, weights: Weights, roles: Roles) -> Weights:
    """All ranks of a role and all steps alike, and all groups that meet in the same way."""
    groups = Groups(*number_rows(roles.role, roles.kind))
    own = groups.medians(weights.own)[groups.number]
    gap = groups.medians(weights.gap)[groups.number]
    transfer = weights.transfer
    if roles.links is not None:
        transfer = roles.links.usual(transfer)
    return Weights(own, gap, transfer)
