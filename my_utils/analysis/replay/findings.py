"""What was explained, as findings with names instead of numbers."""

from __future__ import annotations

import numpy as np

from ..verdict.kinds import Kind
from .explain import Explained
from .graph import Graph
from .result import Evidence, ReplayFinding
from .roles import Roles
from .suspects import Claim

KINDS: dict[Claim, Kind] = {
    "slow rank": "straggler",
    "slow host": "straggler",
    "slow stage": "straggler",
    "slow link": "communication",
    "steps that stick out": "host hiccups",
    "imbalance that moves": "moving imbalance",
    "slower since": "slower since",
    "slower over time": "throughput falls",
    "checkpoint": "checkpoint",
    "eval": "eval",
    "input": "input",
}


def finding_of(one: Explained, graph: Graph, roles: Roles) -> ReplayFinding:
    suspect = one.suspect
    saving = float(one.saving.mean())
    evidence = _evidence(one, graph)
    known = roles.are_stages and len(suspect.ranks) > 0
    stages = {int(roles.names[roles.role_of_rank[roles.ranks == r][0]]) for r in suspect.ranks}
    return ReplayFinding(
        kind=KINDS[suspect.claim],
        ranks=suspect.ranks,
        hosts=(suspect.host,) if suspect.host else (),
        stage=evidence[0].name if evidence else None,
        cost_ns_a_step=saving,
        share=one.share,
        saves_ns_a_step=saving,
        since_step=None if suspect.since is None else int(graph.steps[suspect.since]),
        claim=suspect.claim,
        pipeline_stage=stages.pop() if known and len(stages) == 1 else None,
        low=one.low,
        high=one.high,
        steps=tuple(graph.steps[suspect.steps].tolist()),
        evidence=evidence,
    )


def _evidence(one: Explained, graph: Graph) -> list[Evidence]:
    """Where it lies: of each name what it takes on average, and what it would take."""
    cut = one.suspect.cut
    found = []
    for name, share in one.where:
        before = name.startswith("before ") and name not in graph.names
        number = graph.names.index(name.removeprefix("before ") if before else name)
        those = graph.name[cut.nodes] == number
        if those.any():
            part, off = (one.weights.gap, cut.gap) if before else (one.weights.own, cut.own)
            took, less = part[cut.nodes][those], off[those]
        else:
            those = graph.meeting_name[cut.meetings] == number
            took, less = one.weights.transfer[cut.meetings][those], cut.transfer[those]
        if len(took):
            usual = max(float(np.mean(took - less)), 0.0)  # times are rounded
            found.append(Evidence(name, share, float(np.mean(took)), usual))
    return found
