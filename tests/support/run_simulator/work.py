"""What each rank of a healthy run does itself in each step and stage, before any waiting."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from . import noise

Matrix = npt.NDArray[np.float64]

# In the order of a step. The last is what no stage covers.
STAGES = (
    "input",
    "forward",
    "loss",
    "backward",
    "collective",
    "optimizer",
    "eval",
    "checkpoint",
    "untimed",
)
# The recorded stage whose noise each one has.
NOISE = (
    "input",
    "forward",
    "loss",
    "backward",
    "loss",
    "optimizer",
    "forward",
    "optimizer",
    "input",
)
# The range of each stage's share of a healthy step; what is left belongs to backward.
SHARES = {
    "input": (0.005, 0.03),
    "forward": (0.26, 0.36),
    "loss": (0.01, 0.03),
    "optimizer": (0.02, 0.05),
    "untimed": (0.005, 0.02),
}
SHORTEST_NS, LONGEST_NS = 8e6, 300e6  # of a step
RANK_SPEED = 0.004  # standard deviation of how fast ranks are
WARM_UP_AT_MOST = 6  # steps


def column(stage: str) -> int:
    return STAGES.index(stage)


@dataclass
class OwnWork:
    """mean_ns: of each stage. residuals: ranks × steps × stages, around 1. slowness: of each rank,
    around 1. warm_up: the factor of each step. extra_ns: ranks × steps × stages, what is planted.
    """

    mean_ns: Matrix
    residuals: Matrix
    slowness: Matrix
    warm_up: Matrix
    extra_ns: Matrix

    def total_ns(self, amplitude: float) -> Matrix:
        """Ranks × steps × stages, with that part of the recorded noise; never below a tenth."""
        factors = np.maximum(1 + amplitude * (self.residuals - 1), 0.1)
        healthy = self.mean_ns * factors * self.slowness[:, None, None]
        total: Matrix = healthy * self.warm_up[None, :, None] + self.extra_ns
        return np.maximum(total, 0.1 * healthy)


def draw(random: np.random.Generator, ranks: int, steps: int) -> OwnWork:
    shares = {stage: random.uniform(*bounds) for stage, bounds in SHARES.items()}
    shares["backward"] = 1 - sum(shares.values())
    step_ns = np.exp(random.uniform(np.log(SHORTEST_NS), np.log(LONGEST_NS)))
    warm = int(random.integers(WARM_UP_AT_MOST + 1))
    warm_up = np.ones(steps)
    warm_up[:warm] += random.uniform(1, 7) * 0.4 ** np.arange(warm)
    return OwnWork(
        np.array([step_ns * shares.get(stage, 0.0) for stage in STAGES]),
        noise.draw(random, ranks, steps, NOISE),
        1 + RANK_SPEED * random.standard_normal(ranks),
        warm_up,
        np.zeros((ranks, steps, len(STAGES))),
    )
