"""How much slower the steps are than if every kind of operation took its usual time on all ranks.

The definition of arXiv 2505.05713, written anew: computing takes its mean and communication its
median over ranks, steps and micro-batches, and on both sides nothing passes between operations.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .engine import lengths, replay
from .graph import Graph, Weights
from .peers import Groups


@dataclass
class Slowdown:
    """busy_ns: the mean step without what passes between operations; ideal_ns: the same with each
    kind at its usual time; factor: their ratio, S."""

    busy_ns: float
    ideal_ns: float

    @property
    def factor(self) -> float:
        return self.busy_ns / self.ideal_ns if self.ideal_ns else 1.0


def measure_slowdown(graph: Graph) -> Slowdown:
    weights = graph.weights
    no_gap = np.zeros_like(weights.gap)
    busy = Weights(weights.own, no_gap, weights.transfer)
    names = Groups(graph.name, len(graph.names))
    counts = np.bincount(graph.name, minlength=len(graph.names))
    mean = np.bincount(graph.name, weights.own, len(graph.names)) / np.maximum(counts, 1)
    own = np.where(graph.meets, names.medians(weights.own)[graph.name], mean[graph.name])
    meetings = Groups(graph.meeting_name, len(graph.names))
    transfer = meetings.medians(weights.transfer)[graph.meeting_name]
    ideal = Weights(own, no_gap, transfer)
    return Slowdown(*(float(lengths(graph, replay(graph, one)).mean()) for one in (busy, ideal)))
