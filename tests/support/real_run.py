"""A real training run under DDP over gloo, timed by MyTimer, with one thing wrong with it.

Each stage works for as many milliseconds as it is passed: it computes, or where there are more
ranks than processors it sleeps. `tests.analysis.verdict.test_real_runs` starts a process a rank.
"""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from my_utils import ClockSynchronizer, GlobalLogger, MyTimer

BASE_MS = {"input": 0.1, "forward": 4.0, "loss": 0.1, "backward": 5.0, "optimizer": 0.3}
STEPS = 70
SINCE = 40
PAUSES = (22, 31, 39, 50, 58, 66)  # steps at which garbage is collected
HOGGED = (*range(22, 26), *range(36, 39), *range(47, 52), *range(61, 65))
GARBAGE = 400_000  # objects that a collection walks
GROWS_BYTES = 8 << 20  # a step


@dataclass
class Plant:
    """What is wrong: `extra(rank, step)` gives the milliseconds that each stage takes longer.
    ranks: those to blame; None for all."""

    extra: Callable[[int, int], dict[str, float]]
    ranks: tuple[int, ...] | None
    host_of: Callable[[int], str] = lambda rank: "node0"


def _on(rank: int, **extra: float) -> Callable[[int, int], dict[str, float]]:
    return lambda at, step: extra if at == rank else {}


def _every(steps: int, rank: int | None, **extra: float) -> Callable[[int, int], dict[str, float]]:
    return lambda at, step: extra if step % steps == steps - 1 and rank in (None, at) else {}


def _uneven(rank: int, step: int) -> dict[str, float]:
    return {"forward": 6.0, "backward": 7.0} if _longest(step) == rank % 2 else {}


def _longest(step: int) -> int:
    """Which of each two ranks has the long batch: no period to be seen."""
    return (step * 2654435761 >> 7) % 2


def _throttled(rank: int, step: int) -> dict[str, float]:
    """In no stage more than in another."""
    return dict.fromkeys(BASE_MS, 2.0) if rank < 2 else {}


def _falling(rank: int, step: int) -> dict[str, float]:
    return {name: ms * 3 * step / STEPS for name, ms in BASE_MS.items()}


def plants(world: int) -> dict[str, Plant]:
    """By the names of the table of truth; the last rank is the one to blame."""
    last = world - 1
    return {
        "slow loader on one rank": Plant(_on(last, input=12.0), (last,)),
        "slow loader on all ranks": Plant(lambda rank, step: {"input": 12.0}, None),
        "slow host": Plant(_throttled, (0, 1), lambda rank: f"node{rank // 2}"),
        "all ranks slower from a step on": Plant(
            lambda rank, step: {"forward": 20.0 if step >= SINCE else 0.0}, None
        ),
        "slow forward on one rank": Plant(_on(last, forward=12.0), (last,)),
        "slow optimizer on all ranks": Plant(lambda rank, step: {"optimizer": 12.0}, None),
        "one rank sleeps every 5th step": Plant(_every(5, last, forward=50.0), (last,)),
        "growing memory": Plant(lambda rank, step: {}, (last,)),
        "GC pauses": Plant(lambda rank, step: {}, (last,)),
        "CPU hog": Plant(lambda rank, step: {}, (last,)),
        "uneven batches": Plant(_uneven, None),
        "checkpoint stalls on all ranks": Plant(_every(12, None, checkpoint=150.0), None),
        "evaluation on all ranks": Plant(_every(15, None, eval=180.0), None),
        "untimed work on all ranks": Plant(lambda rank, step: {"untimed": 12.0}, None),
        "falling throughput": Plant(_falling, None),
        "slow backward on all ranks": Plant(lambda rank, step: {"backward": 15.0}, None),
    }


def compute(ms: float) -> None:
    """Uses the processor for so long."""
    end = time.thread_time() + ms / 1e3
    block = torch.ones(48, 48)
    while time.thread_time() < end:
        block = (block @ block).clamp(max=1)


def sleep(ms: float) -> None:
    time.sleep(ms / 1e3)


def train(rank: int, world: int, plant_name: str, folder: str) -> None:
    """One rank; the process group is up already."""
    torch.set_num_threads(1)
    plant = plants(world)[plant_name]
    work = sleep if world > len(os.sched_getaffinity(0)) else compute
    logger = GlobalLogger()
    logger.setup(folder, rank=rank, world_size=world, console=False, machine_id=plant.host_of(rank))
    if len({plant.host_of(other) for other in range(world)}) > 1:
        ClockSynchronizer.sync_all()  # else nobody knows which host is late
    timer = MyTimer(tag="run")
    model = DistributedDataParallel(nn.Linear(16, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    wrong = _Wrong(plant_name, plant.ranks is not None and rank in plant.ranks)
    for step in range(STEPS):
        timer.set_step(step)
        extra = plant.extra(rank, step)
        wrong.before(step)

        def busy(stage: str, extra: dict[str, float] = extra) -> None:
            work(BASE_MS.get(stage, 0.0) + extra.get(stage, 0.0))

        with timer.time_stage("input"):
            busy("input")
        with timer.time_stage("forward"):
            out = model(torch.ones(4, 16))
            busy("forward")
            wrong.within("forward", step)
        with timer.time_stage("loss"):
            loss = out.square().mean()
            busy("loss")
        with timer.time_stage("backward"):
            busy("backward")
            loss.backward()
        with timer.time_stage("optimizer"):
            optimizer.step()
            optimizer.zero_grad()
            busy("optimizer")
            wrong.within("optimizer", step)
        for stage in ("eval", "checkpoint"):
            if stage in extra:
                with timer.time_stage(stage):
                    busy(stage)
        busy("untimed")
        _count(logger, step, rank, plant_name)
        timer.step()
    wrong.after()
    logger.close()


class _Wrong:
    """What no list of milliseconds says: real collections, a real hog, real memory."""

    def __init__(self, name: str, mine: bool) -> None:
        self.name = name if mine else ""
        self.garbage = [[number] for number in range(GARBAGE)] if self.name == "GC pauses" else []
        self.kept: list[bytes] = []
        self.hog = Hog() if self.name == "CPU hog" else None

    def before(self, step: int) -> None:
        if self.hog is not None:
            self.hog.run(step in HOGGED)

    def within(self, stage: str, step: int) -> None:
        if self.name == "GC pauses" and step in PAUSES:
            # Not in backward, where the others wait for it: it would be seen in forward alone.
            if stage == ("forward" if step % 2 else "optimizer"):
                for _ in range(6):
                    gc.collect()
        elif self.name == "growing memory" and stage == "forward":
            self.kept.append(b"x" * GROWS_BYTES)

    def after(self) -> None:
        if self.hog is not None:
            self.hog.end()


class Hog:
    """Programs that take this process's processor while they are let."""

    def __init__(self) -> None:
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})  # the children's too
        spin = "import ctypes; ctypes.CDLL(None).prctl(1, 9)\nwhile True: pass"
        self.processes = [subprocess.Popen([sys.executable, "-c", spin]) for _ in range(4)]
        self.run(False)

    def run(self, running: bool) -> None:
        for process in self.processes:
            process.send_signal(signal.SIGCONT if running else signal.SIGSTOP)

    def end(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait()


def _count(logger: GlobalLogger, step: int, rank: int, plant_name: str) -> None:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    logger.counter("memory", {"rss_bytes": pages * os.sysconf("SC_PAGE_SIZE")})
    uneven = plant_name == "uneven batches" and _longest(step) == rank % 2
    logger.counter("batch", {"samples": 4, "tokens": 2400 if uneven else 1000})
