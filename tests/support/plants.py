"""Faults planted into simulated programs, each of a known cost, and what a right verdict says."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from .programs import COMPUTE, LAYOUTS, Call, Program, Times

WORKS = ("forward", "backward", "expert")


@dataclass
class Truth:
    """claim: as the verdict has it. ranks: who; () for nobody by name. saves: of the step."""

    claim: str
    ranks: tuple[int, ...] = ()
    saves: float = 0.0


@dataclass
class Case:
    program: Program
    truth: Truth | None


def _of(program: Program, ranks: tuple[int, ...]) -> list[Call]:
    return [
        call for call in program.calls
        if call.kind == "work" and call.rank in ranks and call.name.startswith(WORKS)
    ]  # fmt: skip


# Each plant has a size that it is scaled by, and changes the works of calls.
Plant = Callable[[Program, np.random.Generator], tuple[Truth, dict[int, Times]]]


def _grown(calls: list[Call], factor: Times) -> dict[int, Times]:
    return {id(call): call.work * factor for call in calls}


def slow_rank(program: Program, rng: np.random.Generator) -> tuple[Truth, dict[int, Times]]:
    rank = int(rng.integers(program.ranks))
    return Truth("slow rank", (rank,)), _grown(_of(program, (rank,)), np.ones(program.steps))


def slow_host(program: Program, rng: np.random.Generator) -> tuple[Truth, dict[int, Times]]:
    host = int(rng.choice(program.host))
    ranks = tuple(rank for rank in range(program.ranks) if program.host[rank] == host)
    return Truth("slow host", ranks), _grown(_of(program, ranks), np.ones(program.steps))


def slow_stage(program: Program, rng: np.random.Generator) -> tuple[Truth, dict[int, Times]]:
    stage = int(rng.choice(program.stage))
    ranks = tuple(rank for rank in range(program.ranks) if program.stage[rank] == stage)
    return Truth("slow stage", ranks), _grown(_of(program, ranks), np.ones(program.steps))


def slow_link(program: Program, rng: np.random.Generator) -> tuple[Truth, dict[int, Times]]:
    kinds = [call for call in program.calls if call.kind == "meet"]
    sizes = {call.name: {one.group for one in kinds if one.name == call.name} for call in kinds}
    name = str(rng.choice(sorted(one for one, groups in sizes.items() if len(groups) > 1)))
    groups = sorted(sizes[name])
    group = groups[int(rng.integers(len(groups)))]
    those = [call for call in kinds if call.group == group and call.name == name]
    return Truth("slow link", group), _grown(those, np.ones(program.steps))


def outliers(program: Program, rng: np.random.Generator) -> tuple[Truth, dict[int, Times]]:
    rank = int(rng.integers(program.ranks))
    steps = rng.permutation(program.steps)[: max(program.steps // 12, 2)]
    factor = np.zeros(program.steps)
    factor[steps] = 1.0
    return Truth("steps that stick out", (rank,)), _grown(_of(program, (rank,)), factor)


def moving(program: Program, rng: np.random.Generator) -> tuple[Truth, dict[int, Times]]:
    """In each step another rank of a stage has more to do, and the others less: together it is as
    much. Beside that all differ somewhat."""
    factor = rng.normal(0.0, 0.2, (program.ranks, program.steps))
    stage = np.array(program.stage)
    for one in sorted(set(program.stage)):
        ranks = np.flatnonzero(stage == one)
        factor[rng.choice(ranks, program.steps), np.arange(program.steps)] += 1.0
        factor[ranks] -= factor[ranks].mean(axis=0)
    grown: dict[int, Times] = {}
    for rank in range(program.ranks):
        grown |= _grown(_of(program, (rank,)), factor[rank])
    return Truth("imbalance that moves"), grown


def micro_batches(program: Program, rng: np.random.Generator) -> tuple[Truth, dict[int, Times]]:
    """Micro-batches differ, each by as much on all stages; together they are as much."""
    place = {rank: program.stage[:rank].count(program.stage[rank]) for rank in range(program.ranks)}
    rows: dict[tuple[int, str, int], Times] = {}
    turns: dict[tuple[int, str], int] = {}
    keys = []
    for call in _of(program, tuple(range(program.ranks))):
        turn = turns.get((call.rank, call.name), 0)
        turns[call.rank, call.name] = turn + 1
        key = (place[call.rank], call.name, turn)
        rows.setdefault(key, rng.exponential(1.0, program.steps))
        keys.append((call, key))
    mean = np.mean(list(rows.values()), axis=0)
    grown = {id(call): call.work * (rows[key] - mean) for call, key in keys}
    return Truth("imbalance that moves"), grown


def change(program: Program, rng: np.random.Generator) -> tuple[Truth, dict[int, Times]]:
    at = int(program.steps * rng.uniform(0.4, 0.7))
    factor = (np.arange(program.steps) >= at).astype(float)
    return Truth("slower since"), _grown(_of(program, tuple(range(program.ranks))), factor)


def trend(program: Program, rng: np.random.Generator) -> tuple[Truth, dict[int, Times]]:
    factor = np.linspace(0.0, 1.0, program.steps)
    return Truth("slower over time"), _grown(_of(program, tuple(range(program.ranks))), factor)


def checkpoint(program: Program, rng: np.random.Generator) -> tuple[Truth, dict[int, Times]]:
    ran = np.arange(program.steps) % 10 == int(rng.integers(10))
    grown: dict[int, Times] = {}
    for rank in range(program.ranks):
        call = program.work(rank, "checkpoint", 10.0)
        call.ran = ran
        grown[id(call)] = np.where(ran, call.work, 0.0)
        call.work = np.zeros(program.steps)
    return Truth("checkpoint"), grown


PLANTS: dict[str, Plant] = {
    "slow rank": slow_rank, "slow host": slow_host, "slow stage": slow_stage,
    "slow link": slow_link, "outliers": outliers, "moving": moving,
    "micro-batches": micro_batches, "change": change,
    "trend": trend, "checkpoint": checkpoint,
}  # fmt: skip


def can_have(layout: str, plant: str, ranks: int) -> bool:
    """Whether the plant can be seen there: a link needs another one to be compared with."""
    if plant == "slow link":
        return (
            ranks >= 4
            if layout in ("hsdp", "tp_dp", "3d")
            else layout in ("pp", "ep") and ranks > 4
        )
    if plant == "slow stage":
        return layout in ("pp", "interleaved", "3d")
    if plant == "micro-batches":
        return layout in ("pp", "interleaved") and ranks >= 4
    if plant == "slow host":
        return ranks >= 8
    if plant == "moving":  # of a stage with one rank there is nobody to share with
        return ranks > {"pp": 4, "interleaved": 4, "3d": 2}.get(layout, 1)
    return True


def case_of(
    layout: str, plant: str | None, size: float, ranks: int, steps: int, seed: int,
    noise: float = 0.03,
) -> Case:  # fmt: skip
    """A program with a fault that makes its mean step longer by `size`, or a healthy one."""
    rng = np.random.default_rng((seed, ranks, steps))
    program = Program(ranks, steps, rng, noise)
    LAYOUTS[layout](program)
    for call in program.calls:  # ranks are never quite alike
        if call.stream == COMPUTE and call.kind == "work":
            call.work = call.work * (1 + 0.01 * np.sin(call.rank * 7.3 + seed))
    if plant is None:
        program.run()
        return Case(program, None)
    truth, grown = PLANTS[plant](program, rng)
    healthy = program.run().mean()
    works = {id(call): call.work for call in program.calls}
    amount = _calibrated(program, grown, works, healthy, size)
    _set(program, grown, works, amount)
    truth.saves = 1 - healthy / program.run().mean()
    return Case(program, truth)


def _set(program: Program, grown: dict[int, Times], works: dict[int, Times], amount: float) -> None:
    for call in program.calls:
        if id(call) in grown:
            work = works[id(call)]
            call.work = np.maximum(work + amount * grown[id(call)], 0.1 * work)


def _calibrated(
    program: Program, grown: dict[int, Times], works: dict[int, Times], healthy: float, size: float
) -> float:
    """How much of the plant makes the mean step so much longer, to 1 %."""
    low, high = 0.0, 0.25
    for _ in range(12):
        _set(program, grown, works, high)
        if program.run().mean() >= healthy * (1 + size):
            break
        low, high = high, 2 * high
    for _ in range(7):
        middle = (low + high) / 2
        _set(program, grown, works, middle)
        if program.run().mean() >= healthy * (1 + size):
            high = middle
        else:
            low = middle
    return high
