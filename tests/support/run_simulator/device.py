"""Runs on a GPU: the host hands work to the device and runs ahead of it, as far as a queue allows.

A stage is many kernels. Each begins on the device when it was enqueued and the one before it has
ended; the host waits where the device is a whole step behind it, in whichever stage it is then.
Gradients are reduced by the last kernel of `backward`, which ends together on all ranks;
`collective` is an all-reduce that the script calls. `input` and what no stage covers are the host's
alone. Times of the GPU are on the host's axis.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from my_utils.analysis.verdict.run_data import GpuTimes, RunData, SyncPoint

from . import noise
from .plants import Planted
from .simulate import RANKS_A_HOST, Simulated

Matrix = npt.NDArray[np.float64]
DevicePlant = Literal[
    "slow copies to the device",
    "launches slower than the device",
    "slow all-reduce of the script",
    "slow loader on all ranks, GPU",
    "slow loader on one rank, GPU",
    "slow device in forward on one rank",
]

STAGES = ("input", "h2d", "forward", "loss", "backward", "collective", "optimizer", "untimed")
NOISE = ("input", "input", "forward", "loss", "backward", "loss", "optimizer", "input")
KERNEL_NS = 20_000.0
ONE_KERNEL = ("h2d", "collective")
# Of a healthy step: what the device takes, and what the host takes to enqueue it.
DEVICE = {"h2d": 0.01, "forward": 0.3, "loss": 0.01, "backward": 0.61, "collective": 0.02,
          "optimizer": 0.05}  # fmt: skip
HOST = {"input": 0.01, "h2d": 0.005, "forward": 0.09, "loss": 0.005, "backward": 0.14,
        "collective": 0.005, "optimizer": 0.03, "untimed": 0.01}  # fmt: skip
SHORTEST_NS, LONGEST_NS = 20e6, 300e6  # of a step
SOME = 24  # steps
START_NS = 6_000  # from the enqueueing of a kernel to its begin on an idle device
ERROR_NS = 5_000  # of the axis
NOISE_PART = 0.3  # of the recorded noise, which is that of a CPU


@dataclass(frozen=True)
class DeviceScenario:
    """synchronises: the script reads the loss in every step, so the host waits for the device.
    pinned: whether copies to the device are asynchronous. hidden_input: the part of a step that the
    loader takes while the device is busy anyway. gpu_times: the part of the steps that have them.
    device_part: what the device takes, as a part of what it usually does; under 0.3 it waits for
    the host. events_everywhere: there are CUDA events around `input`, too. late_ns: how much too
    late the GPU's times are, as real ones may be by their error.
    """

    ranks: int
    steps: int
    plant: DevicePlant | None = None
    loss: float = 0.0
    seed: int = 0
    synchronises: bool = False
    hidden_input: float = 0.0
    gpu_times: float = 1.0
    device_part: float = 1.0
    events_everywhere: bool = False
    late_ns: float = 0.0

    @property
    def pinned(self) -> bool:
        return self.plant != "slow copies to the device"


@dataclass
class _Works:
    """Arrays ranks × steps × stages, ns: the time to enqueue a stage, and to run it."""

    host: Matrix
    device: Matrix


@dataclass
class _Queue:
    """The host and the device of each rank, stage by stage."""

    scenario: DeviceScenario
    works: _Works

    def __post_init__(self) -> None:
        shape = self.works.host.shape
        self.host, self.free = np.zeros(shape[0]), np.zeros(shape[0])
        self.begins, self.ends = np.full(shape, np.nan), np.full(shape, np.nan)
        self.gpu_begins, self.gpu_ends = np.full(shape, np.nan), np.full(shape, np.nan)

    def run(self) -> None:
        for step in range(self.works.host.shape[1]):
            for at, name in enumerate(STAGES[:-1]):
                self.begins[:, step, at] = self.host
                if name in DEVICE:
                    self.stage(step, at, name)
                else:
                    self.stage_of_the_host(step, at)
                self.ends[:, step, at] = self.host
            if self.scenario.synchronises:
                self.host = np.maximum(self.host, self.free)
            self.host = self.host + self.works.host[:, step, -1]

    def stage_of_the_host(self, step: int, at: int) -> None:
        """Events there have nothing between them: each comes with its enqueueing, or later when the
        device has come so far."""
        begin = np.maximum(self.host + START_NS, self.free)
        self.host = self.host + self.works.host[:, step, at]
        if self.scenario.events_everywhere:
            end = np.maximum(self.host + START_NS, self.free)
            self.gpu_begins[:, step, at], self.gpu_ends[:, step, at] = begin, end

    def stage(self, step: int, at: int, name: str) -> None:
        """Kernels follow each other evenly, so that the device ends with the last one enqueued, or
        as long after its begin as all of them take."""
        enqueueing, takes = self.works.host[:, step, at], self.works.device[:, step, at]
        kernels = 1 if name in ONE_KERNEL else np.ceil(takes / KERNEL_NS)
        first = self.host + enqueueing / kernels + START_NS
        begin = np.maximum(first, self.free)
        self.host = self.host + enqueueing
        if step > 0:
            self.host = np.maximum(self.host, self.gpu_ends[:, step - 1, at])
        end = np.maximum(begin + takes, self.host + START_NS + takes / kernels)
        if name in ("backward", "collective"):
            end = np.full_like(end, end.max())
        self.free = end
        self.gpu_begins[:, step, at], self.gpu_ends[:, step, at] = begin, end
        if name == "h2d" and not self.scenario.pinned:
            self.host = np.maximum(self.host, self.free)


def _works(scenario: DeviceScenario, random: np.random.Generator) -> _Works:
    ranks, steps = scenario.ranks, scenario.steps
    step_ns = np.exp(random.uniform(np.log(SHORTEST_NS), np.log(LONGEST_NS)))
    part = NOISE_PART / (1 + np.log2(ranks) / 2)
    drawn = [
        np.maximum(1 + part * (noise.draw(random, ranks, steps, NOISE) - 1), 0.1) for _ in range(2)
    ]
    host = np.array([HOST.get(stage, 0.0) for stage in STAGES])
    host[0] += scenario.hidden_input
    device = np.array([DEVICE.get(stage, 0.0) for stage in STAGES])
    device *= scenario.device_part
    return _Works(step_ns * host * drawn[0], step_ns * device * drawn[1])


def _loader(rank_or_all: int | slice) -> Callable[[_Works, float], None]:
    def plant(works: _Works, size: float) -> None:
        works.host[rank_or_all, :, STAGES.index("input")] += size

    return plant


def _device(stage: str, rank_or_all: int | slice) -> Callable[[_Works, float], None]:
    def plant(works: _Works, size: float) -> None:
        works.device[rank_or_all, :, STAGES.index(stage)] += size

    return plant


def _launches(works: _Works, size: float) -> None:
    at = [STAGES.index(stage) for stage in ("forward", "backward", "optimizer")]
    share = works.host[:, :, at] / works.host[:, :, at].sum(axis=2, keepdims=True)
    works.host[:, :, at] += size * share


def _plant(scenario: DeviceScenario, rank: int) -> tuple[Planted, Callable[[_Works, float], None]]:
    everyone = tuple(range(scenario.ranks))
    nothing = np.zeros(0)
    match scenario.plant:
        case "slow copies to the device":
            return Planted(nothing, everyone, "h2d"), _device("h2d", slice(None))
        case "launches slower than the device":
            return Planted(nothing, everyone), _launches
        case "slow all-reduce of the script":
            return Planted(nothing, everyone, "collective"), _device("collective", slice(None))
        case "slow loader on all ranks, GPU":
            return Planted(nothing, everyone, "input"), _loader(slice(None))
        case "slow loader on one rank, GPU":
            return Planted(nothing, (rank,), "input"), _loader(rank)
        case _:
            return Planted(nothing, (rank,), "forward"), _device("forward", rank)


def _played(scenario: DeviceScenario, works: _Works) -> _Queue:
    queue = _Queue(scenario, works)
    queue.run()
    return queue


def _step_ns(queue: _Queue) -> Matrix:
    begins = queue.begins[:, :, 0]
    return np.diff(begins, axis=1, append=queue.ends[:, -1, -2][:, None])


def _slowest(queue: _Queue) -> Matrix:
    step_ns = _step_ns(queue)
    slowest: Matrix = step_ns[step_ns.sum(axis=1).argmax()]
    return slowest


def _laid(
    scenario: DeviceScenario, works: _Works, add: Callable[[_Works, float], None], wanted: float
) -> _Works:
    """The work with the plant, so large that each step takes `wanted` ns more: by halving, on some
    steps in which the host has run ahead."""
    base = _mean_ns(scenario, works)
    low, high = 0.0, wanted + 2 * base
    for _ in range(10):
        size = (low + high) / 2
        tried = _Works(works.host[:, :SOME].copy(), works.device[:, :SOME].copy())
        add(tried, size)
        costs = _mean_ns(scenario, tried) - base
        if abs(costs - wanted) < 0.01 * wanted:
            break
        low, high = (size, high) if costs < wanted else (low, size)
    add(works, size)
    return works


def _mean_ns(scenario: DeviceScenario, works: _Works) -> float:
    some = _Works(works.host[:, :SOME], works.device[:, :SOME])
    return float(_slowest(_played(scenario, some))[4:-2].mean())


def simulate_device(scenario: DeviceScenario) -> Simulated:
    """The same scenario gives the same run."""
    random = np.random.default_rng([scenario.seed, scenario.ranks])
    works = _works(scenario, random)
    healthy_ns = _slowest(_played(scenario, works))
    planted = None
    if scenario.plant is not None:
        planted, add = _plant(scenario, int(random.integers(scenario.ranks)))
        wanted = float(healthy_ns.mean()) * scenario.loss / (1 - scenario.loss)
        works = _laid(scenario, works, add, wanted)
    queue = _played(scenario, works)
    return Simulated(_as_run(scenario, queue, random), planted, healthy_ns, _slowest(queue))


def _as_run(scenario: DeviceScenario, queue: _Queue, random: np.random.Generator) -> RunData:
    ranks, steps = scenario.ranks, scenario.steps
    missing = random.random(steps) >= scenario.gpu_times
    for times in (queue.gpu_begins, queue.gpu_ends):
        times[:, missing] = np.nan
        times += scenario.late_ns
    error_ns = np.full((ranks, steps), ERROR_NS + scenario.late_ns)
    timed = slice(0, -1)  # the last is what no stage covers
    everyone = tuple(range(ranks))
    points = [SyncPoint("backward", everyone, "ddp"), SyncPoint("collective", everyone)]
    begins, ends = queue.gpu_begins[:, :, timed], queue.gpu_ends[:, :, timed]
    size = RANKS_A_HOST.get(ranks, 8)
    return RunData(
        ranks=np.arange(ranks),
        hosts=[f"node{rank // size}" for rank in everyone],
        world_size=ranks,
        steps=np.arange(steps),
        stages=STAGES[timed],
        begins=queue.begins[:, :, timed],
        ends=queue.ends[:, :, timed],
        totals=(queue.ends - queue.begins)[:, :, timed],
        step_begins=queue.begins[:, :, 0],
        step_ns=_step_ns(queue),
        sync_points=points if ranks > 1 else [],
        device="cuda",
        gpu=GpuTimes(begins, ends, ends - begins, error_ns),
        clock_error_ns=20_000.0,
        ended=[True] * ranks,
        workload={"pin_memory": str(scenario.pinned).lower()},
    )
