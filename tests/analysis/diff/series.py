"""Series of steps whose truth is known: how much they vary, how much each depends on the one
before, and what was planted."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from my_utils.analysis.diff.load import RunSteps

STAGES = ["input", "forward", "backward", "optimizer", "untimed"]
SHARES = np.array([0.1, 0.3, 0.4, 0.15, 0.05])
SPIKES = 0.02  # of the steps, each 80 % longer
STEP_NS = 1e8
BEFORE = 50  # steps until a series has forgotten how it began


def series(
    random: np.random.Generator, steps: int, variation: float, memory: float
) -> npt.NDArray[np.float64]:
    """Steps × stages, ns. variation: the standard deviation of a step, as a share. memory: the
    correlation of a step with the one before."""
    innovations = random.standard_normal((BEFORE + steps, len(SHARES))) * np.sqrt(1 - memory**2)
    noise = np.zeros_like(innovations)
    for at in range(1, len(noise)):
        noise[at] = memory * noise[at - 1] + innovations[at]
    took = SHARES + np.sqrt(SHARES / SHARES.sum()) * variation * noise[BEFORE:]
    took[random.random(steps) < SPIKES] *= 1.8
    scaled: npt.NDArray[np.float64] = STEP_NS * took
    return scaled


def run(
    random: np.random.Generator, variation: float = 0.03, memory: float = 0.5, *, steps: int = 500,
    longer: float = 0.0, stage: str = "backward", factor: float = 1.0,
) -> RunSteps:  # fmt: skip
    """One rank. longer: of a step, planted in the stage. factor: of the whole run."""
    took = factor * series(random, steps, variation, memory)
    took[:, STAGES.index(stage)] += longer * STEP_NS
    return RunSteps(list(STAGES), took[None], [0])
