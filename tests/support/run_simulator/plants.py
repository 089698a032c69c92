"""What is wrong with a run: each plant says where the lost time goes, not how much it is.

A plant gives a pattern, ranks × steps × stages, whose sum over the stages is 1 on average over the
steps of the rank that the others wait for. `simulate` scales it until the run has lost what was
asked for. What a plant must be called stands in `tests.analysis.verdict.truth`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from .work import STAGES, OwnWork, column

Matrix = npt.NDArray[np.float64]

SLEEPS_EVERY = 5  # steps
GC_EVERY = (8, 15)  # steps from one collection to the next
HOG_STAYS, HOG_AWAY = (2, 7), (6, 16)  # steps
CHECKPOINT_EVERY, EVAL_EVERY = 12, 15
TOKEN_SPREAD = 0.35  # of the logarithm of a batch's tokens


@dataclass
class Planted:
    """ranks: those to blame. stage: where the time goes, None for several. since_step: from when
    on. tokens: rank × step, what a unit of the pattern adds to a batch, as a part of it.
    bytes_a_step: what the memory of `ranks` grows by, for a loss of 1."""

    pattern: Matrix
    ranks: tuple[int, ...]
    stage: str | None = None
    since_step: int | None = None
    tokens: Matrix | None = None
    grows: bool = False


@dataclass
class Stage:
    """What a plant may use: the healthy run."""

    work: OwnWork
    hosts: list[str]
    random: np.random.Generator
    everyone: tuple[int, ...] = field(init=False)

    def __post_init__(self) -> None:
        self.ranks, self.steps = self.work.residuals.shape[:2]
        self.everyone = tuple(range(self.ranks))

    def nothing(self) -> Matrix:
        return np.zeros(self.work.residuals.shape)

    def one(self) -> int:
        return int(self.random.integers(self.ranks))

    def unsteady(self, shape: tuple[int, ...]) -> Matrix:
        """Around 1: planted work varies as work does."""
        drawn: Matrix = self.random.uniform(0.9, 1.1, shape)
        return drawn


Plant = Callable[[Stage], Planted]


def steady(stage: str, who: str) -> Plant:
    """More of a stage in every step, on one rank or on all."""

    def plant(on: Stage) -> Planted:
        pattern = on.nothing()
        ranks = on.everyone if who == "all" else (on.one(),)
        pattern[list(ranks), :, column(stage)] = on.unsteady((len(ranks), on.steps))
        return Planted(pattern, ranks, stage)

    return plant


def slow_host(on: Stage) -> Planted:
    """All that the ranks of a host compute takes longer, as on a host that is throttled."""
    host = on.hosts[on.one()]
    ranks = [rank for rank in on.everyone if on.hosts[rank] == host]
    pattern = on.nothing()
    mean = on.work.mean_ns / on.work.mean_ns.sum()
    pattern[ranks] = mean * on.unsteady((len(ranks), on.steps, len(STAGES)))
    return Planted(pattern, tuple(ranks))


def slower_since(on: Stage) -> Planted:
    """The forward of all ranks is longer from a step on."""
    since = int(on.random.integers(int(0.45 * on.steps), int(0.65 * on.steps)))
    pattern = on.nothing()
    after = on.steps - since
    pattern[:, since:, column("forward")] = on.steps / after * on.unsteady((on.ranks, after))
    return Planted(pattern, on.everyone, "forward", since)


def sleeping(on: Stage) -> Planted:
    """One rank sleeps in the forward of every k-th step."""
    rank, first = on.one(), int(on.random.integers(SLEEPS_EVERY))
    pattern = on.nothing()
    pattern[rank, first::SLEEPS_EVERY, column("forward")] = SLEEPS_EVERY
    return Planted(pattern, (rank,), "forward")


def memory_grows(on: Stage) -> Planted:
    """The resident memory of one rank grows in every step; it costs no time."""
    return Planted(on.nothing(), (on.one(),), grows=True)


def gc_pauses(on: Stage) -> Planted:
    """One rank stops now and then, in any stage that makes objects of Python; backward does not."""
    rank, step, pattern = on.one(), int(on.random.integers(GC_EVERY[1])), on.nothing()
    stages = [column(name) for name in ("input", "forward", "loss", "optimizer")]
    pauses = []
    while step < on.steps:
        pauses.append((step, int(on.random.choice(stages))))
        step += int(on.random.integers(*GC_EVERY))
    for step, stage in pauses:
        pattern[rank, step, stage] = on.steps / len(pauses) * on.random.uniform(0.8, 1.2)
    return Planted(pattern, (rank,))


def cpu_hog(on: Stage) -> Planted:
    """Another program takes the processor of one rank for some steps, again and again."""
    rank, pattern = on.one(), on.nothing()
    busy = np.zeros(on.steps, bool)
    step = int(on.random.integers(HOG_AWAY[1]))
    while step < on.steps:
        stays = int(on.random.integers(*HOG_STAYS))
        busy[step : step + stays] = True
        step += stays + int(on.random.integers(*HOG_AWAY))
    stages = np.flatnonzero(on.work.mean_ns[:-1])
    # A time slice is lost or not, so that each stage has another part of it in each step.
    lost = on.random.exponential(1, (int(busy.sum()), len(stages)))
    share = on.work.mean_ns[stages] / on.work.mean_ns[stages].sum()
    pattern[rank][np.ix_(np.flatnonzero(busy), stages)] = lost * share / busy.mean()
    return Planted(pattern, (rank,))


def uneven_batches(on: Stage) -> Planted:
    """Each batch has another number of tokens, and its work goes with them."""
    factors = np.exp(TOKEN_SPREAD * on.random.standard_normal((on.ranks, on.steps)))
    factors /= factors.mean()
    unit = (factors - 1) / (factors.max(axis=0).mean() - 1)
    pattern, mean = on.nothing(), on.work.mean_ns
    at = [column("forward"), column("backward")]
    share = mean[at] / mean[at].sum()
    pattern[:, :, at] = unit[:, :, None] * share
    return Planted(pattern, on.everyone, tokens=unit / mean[at].sum())


def every(stage: str, steps: int, who: str) -> Plant:
    """A stage that runs in every so many steps only, on rank 0 or on all ranks."""

    def plant(on: Stage) -> Planted:
        pattern = on.nothing()
        ranks = on.everyone if who == "all" else (0,)
        at = np.arange(on.steps)[steps - 1 :: steps]
        size = on.steps / len(at) * on.unsteady((len(ranks), len(at)))
        pattern[np.array(ranks)[:, None], at, column(stage)] = size
        return Planted(pattern, ranks, stage)

    return plant


def throughput_falls(on: Stage) -> Planted:
    """All that ranks compute takes longer and longer, without a step at which it begins."""
    ramp = np.linspace(0, 2, on.steps)
    mean = on.work.mean_ns / on.work.mean_ns.sum()
    pattern = ramp[None, :, None] * mean * on.unsteady((on.ranks, on.steps, 1))
    return Planted(pattern, on.everyone)


PLANTS: dict[str, Plant] = {
    "slow loader on one rank": steady("input", "one"),
    "slow loader on all ranks": steady("input", "all"),
    "slow host": slow_host,
    "all ranks slower from a step on": slower_since,
    "slow forward on one rank": steady("forward", "one"),
    "slow optimizer on all ranks": steady("optimizer", "all"),
    "slow optimizer on one rank": steady("optimizer", "one"),
    "one rank sleeps every 5th step": sleeping,
    "growing memory": memory_grows,
    "GC pauses": gc_pauses,
    "CPU hog": cpu_hog,
    "uneven batches": uneven_batches,
    "checkpoint stalls on all ranks": every("checkpoint", CHECKPOINT_EVERY, "all"),
    "checkpoint stalls on rank 0": every("checkpoint", CHECKPOINT_EVERY, "first"),
    "evaluation on all ranks": every("eval", EVAL_EVERY, "all"),
    "evaluation on rank 0": every("eval", EVAL_EVERY, "first"),
    "untimed work on all ranks": steady("untimed", "all"),
    "falling throughput": throughput_falls,
    "slow backward on all ranks": steady("backward", "all"),
    "slow backward on one rank": steady("backward", "one"),
}
