"""Long runs with events in them: what is planted, and how a timeline must name it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from my_utils.analysis.timeline.timeline import Part, Timeline, make_timeline
from my_utils.analysis.verdict.rules import judge
from my_utils.analysis.verdict.run_data import RunData
from tests.support.run_simulator.meetings import Topology
from tests.support.run_simulator.simulate import Scenario, _as_run, _draw
from tests.support.run_simulator.work import STAGES, column

Matrix = npt.NDArray[np.float64]
WITHIN = 0.01  # of the run, of each begin


@dataclass
class Event:
    """begins: the steps at which a part must begin. ranks: by part, those that must be named in it,
    () for none. pattern: rank × step × stage, in healthy steps."""

    pattern: Matrix
    begins: list[int] = field(default_factory=list)
    ranks: list[tuple[int, ...]] = field(default_factory=list)
    drift: bool = False
    period: tuple[int, tuple[int, ...]] | None = None


@dataclass
class Stage:
    ranks: int
    steps: int
    size: float  # of a step
    random: np.random.Generator

    def nothing(self) -> Matrix:
        return np.zeros((self.ranks, self.steps, len(STAGES)))

    def place(self, low: float, high: float) -> int:
        return int(self.random.uniform(low, high) * self.steps)

    def rank(self) -> int:
        return int(self.random.integers(self.ranks))


def all_since(on: Stage) -> Event:
    """All ranks take longer from a step on."""
    at, pattern = on.place(0.3, 0.8), on.nothing()
    pattern[:, at:, column("forward")] = on.size
    return Event(pattern, [at], [(), ()])


def all_until(on: Stage) -> Event:
    at, pattern = on.place(0.3, 0.7), on.nothing()  # what is shorter may be a warm-up
    pattern[:, :at, column("backward")] = on.size
    return Event(pattern, [at], [(), ()])


def one_since(on: Stage) -> Event:
    at, rank, pattern = on.place(0.3, 0.8), on.rank(), on.nothing()
    pattern[rank, at:, column("forward")] = on.size
    return Event(pattern, [at], [(), (rank,)])


def one_for_a_while(on: Stage) -> Event:
    first, rank, pattern = on.place(0.2, 0.6), on.rank(), on.nothing()
    last = first + int(on.random.uniform(0.06, 0.2) * on.steps)
    pattern[rank, first:last, column("forward")] = on.size
    return Event(pattern, [first, last], [(), (rank,), ()])


def one_then_another(on: Stage) -> Event:
    at, pattern = on.place(0.35, 0.65), on.nothing()
    one, other = on.random.choice(on.ranks, 2, replace=False).tolist()
    pattern[one, :at, column("forward")] = on.size
    pattern[other, at:, column("forward")] = on.size
    return Event(pattern, [at], [(one,), (other,)])


def all_for_a_while(on: Stage) -> Event:
    first, pattern = on.place(0.2, 0.6), on.nothing()
    last = first + int(on.random.uniform(0.06, 0.2) * on.steps)
    pattern[:, first:last, column("input")] = on.size
    return Event(pattern, [first, last])


def twice(on: Stage) -> Event:
    first, second, pattern = on.place(0.2, 0.4), on.place(0.55, 0.8), on.nothing()
    pattern[:, first:, column("forward")] = on.size
    pattern[:, second:, column("forward")] = 2 * on.size
    return Event(pattern, [first, second])


def each_week(on: Stage) -> Event:
    """Four levels, each higher than the one before."""
    pattern = on.nothing()
    begins = [on.steps * week // 4 for week in range(1, 4)]
    for week, begin in enumerate(begins, 1):
        pattern[:, begin:, column("forward")] = week * on.size
    return Event(pattern, begins)


def drift(on: Stage) -> Event:
    pattern = on.nothing()
    pattern[..., column("forward")] = np.linspace(0, 1.5 * on.size, on.steps)
    return Event(pattern, drift=True)


def pauses_of_one(on: Stage) -> Event:
    every, pattern = max(on.steps // int(on.random.integers(8, 30)), 25), on.nothing()
    pattern[0, every - 1 :: every, column("untimed")] = 10 * on.size + 1.0
    return Event(pattern, period=(every, (0,)))


def pauses_of_all(on: Stage) -> Event:
    every, pattern = max(on.steps // int(on.random.integers(8, 30)), 25), on.nothing()
    pattern[:, every - 1 :: every, column("checkpoint")] = 10 * on.size + 1.0
    return Event(pattern, period=(every, ()))


def input_of_one_since(on: Stage) -> Event:
    at, rank, pattern = on.place(0.3, 0.8), on.rank(), on.nothing()
    pattern[rank, at:, column("input")] = on.size
    return Event(pattern, [at], [(), (rank,)])


EVENTS: dict[str, Callable[[Stage], Event]] = {
    "all ranks since a step": all_since,
    "all ranks until a step": all_until,
    "one rank since a step": one_since,
    "one rank for a while": one_for_a_while,
    "one rank, then another": one_then_another,
    "all ranks for a while": all_for_a_while,
    "all ranks twice": twice,
    "all ranks each week": each_week,
    "a slow drift": drift,
    "pauses of rank 0": pauses_of_one,
    "pauses of all ranks": pauses_of_all,
    "input of one rank since a step": input_of_one_since,
}


def simulated(
    event: str | None, ranks: int, steps: int, size: float, seed: int, topology: Topology = "ddp"
) -> tuple[RunData, Event | None]:
    scenario = Scenario(ranks, steps, topology, seed=seed)
    seeds = np.random.SeedSequence([seed, ranks, steps]).spawn(3)
    draws = _draw(scenario, np.random.default_rng(seeds[0]))
    planted = None
    if event is not None:
        random = np.random.default_rng(seeds[1])
        planted = EVENTS[event](Stage(ranks, steps, size, random))
        healthy_ns = float(draws.slowest_ns().mean())
        draws.own.extra_ns = (
            healthy_ns * planted.pattern * random.uniform(0.9, 1.1, planted.pattern.shape)
        )
    run = _as_run(scenario, draws, draws.timeline(), np.random.default_rng(seeds[2]))
    return run, planted


def timeline(run: RunData) -> Timeline:
    return make_timeline(run, lambda one, steps: judge(one, within=steps))


def is_right(found: Timeline, event: Event | None, run: RunData) -> bool:
    """Kind, ranks, and each begin within 1 % of the run, or 2 windows."""
    if event is None:
        return len(found.parts) <= 1 and not found.periods
    if event.period is not None:
        every, ranks = event.period
        is_alone = len(run.ranks) == 1
        return (
            any(
                abs(one.every - every) <= 1 and (one.ranks == ranks or is_alone)
                for one in found.periods
            )
            and len(found.parts) <= 1
        )
    if event.drift:
        return any(one.drift is not None and one.drift > 0 for one in found.parts)
    begins = [one.first_step for one in found.parts[1:]]
    near = max(WITHIN * len(run.steps), 5)
    if len(begins) != len(event.begins) or any(
        abs(a - b) > near for a, b in zip(begins, event.begins, strict=True)
    ):
        return False
    return not event.ranks or all(
        _names(part, ranks) for part, ranks in zip(found.parts, event.ranks, strict=True)
    )


def _names(part: Part, ranks: tuple[int, ...]) -> bool:
    """Of one rank alone there is no other to be slower than."""
    return part.verdict.judged_ranks == 1 or part.slow == ranks
