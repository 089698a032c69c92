"""Records how the stages of healthy training runs vary: `tests/data/healthy_residuals.csv`.

    python -m tests.support.record_residuals [--steps N] [--out FILE]

Small models train on 1, 2 and 4 processes on this machine, timed by MyTimer. Gradients are averaged
by a call of their own, a stage that the table leaves out, so that no stage in it waits for another
rank. Each duration is divided by the median of the 41 steps around it, which takes off what drifts
with the load of the machine. A step in which the kernel put the thread aside for other work is left
out: what else runs on the machine is not the run's own noise. The models are small, so that most
steps are short enough for that. The rules of the verdict were not
tuned on these runs.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import os
import resource
import tempfile
import time
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import nn
from torch.multiprocessing.spawn import spawn

from my_utils import GlobalLogger, MyTimer

STAGES = ("input", "forward", "loss", "backward", "optimizer")
ROWS_A_RANK = 260
WINDOW = 41  # steps
OUT = Path(__file__).resolve().parents[1] / "data" / "healthy_residuals.csv"

Table = npt.NDArray[np.float64]


class Convolutions(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(
            nn.Unflatten(1, (1, 8, 8)),
            nn.Conv2d(1, 4, 3),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(144, 10),
        )


def perceptron() -> nn.Module:
    layers: list[nn.Module] = []
    for _ in range(2):
        layers += [nn.Linear(64, 64), nn.GELU()]
    return nn.Sequential(*layers, nn.Linear(64, 10))


def average(model: nn.Module, world: int) -> None:
    for parameter in model.parameters():
        assert parameter.grad is not None
        torch.distributed.all_reduce(parameter.grad)
        parameter.grad /= world


def put_aside() -> int:
    """How often the kernel gave this thread's processor to another one, so far."""
    return resource.getrusage(resource.RUSAGE_THREAD).ru_nivcsw


def train(rank: int, world: int, steps: int, folder: str) -> None:
    """One rank: every stage is timed, and each step says how often it was put aside."""
    torch.set_num_threads(1)
    torch.manual_seed(rank)
    with contextlib.suppress(PermissionError):
        os.nice(-20)  # fewer steps are put aside
    if world > 1:
        torch.distributed.init_process_group(
            "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=world
        )
    logger = GlobalLogger()
    logger.setup(folder, rank=rank, world_size=world, console=False)
    timer = MyTimer(tag="run")
    model = Convolutions() if world == 2 else perceptron()
    optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)
    data = torch.randn(4096, 64)
    for step in range(steps):
        timer.set_step(step)
        aside = -put_aside()
        with timer.time_stage("input"):
            picked = torch.randint(4096, (16,))
            batch, labels = data[picked], picked % 10
        with timer.time_stage("forward"):
            logits = model(batch)
        with timer.time_stage("loss"):
            loss = nn.functional.cross_entropy(logits, labels)
            optimizer.zero_grad()
        with timer.time_stage("backward"):
            loss.backward()
        aside += put_aside()
        if world > 1:
            with timer.time_stage("collective"):
                average(model, world)
        aside -= put_aside()
        with timer.time_stage("optimizer"):
            optimizer.step()
        aside += put_aside()
        logger.counter("aside", aside)
        timer.step()
        if world > 2:  # more ranks than processors
            time.sleep(0.005)
    logger.close()


def stages_ms(path: Path, steps: int) -> tuple[Table, Table]:
    """The durations, steps × stages, and how often each step was put aside."""
    took, aside = np.zeros((steps, len(STAGES))), np.zeros(steps)
    with path.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            step, name = int(row["step"]), row["event_name"]
            if row["event_type"] == "END" and name in STAGES:
                took[step, STAGES.index(name)] = float(row["duration_ms"])
            elif row["event_type"] == "COUNTER" and name == "aside":
                aside[step] = float(row["metadata"].rpartition("value=")[2])
    return took, aside


def residuals(took: Table, aside: Table) -> Table:
    """Durations by the median of those around them, of the steps that were never put aside."""
    warm, kept = took[50:], (aside == 0)[50:]
    half = WINDOW // 2
    rows = []
    for at in np.flatnonzero(kept).tolist():
        around = slice(max(0, at - half), at + half + 1)
        rows.append(warm[at] / np.median(warm[around][kept[around]], axis=0))
    return np.array(rows).reshape(-1, len(STAGES))


def main() -> None:
    parser = argparse.ArgumentParser(description="records tests/data/healthy_residuals.csv")
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--out", type=Path, default=OUT)
    options = parser.parse_args()
    lines = ["world,rank," + ",".join(STAGES)]
    for world in (1, 2, 4):
        with tempfile.TemporaryDirectory() as folder:
            spawn(train, (world, options.steps, folder), nprocs=world)
            for rank in range(world):
                path = Path(folder) / f"profile_rank_{rank}.csv"
                table = residuals(*stages_ms(path, options.steps))
                print(f"{world} processes, rank {rank}: {len(table)} steps of {options.steps}")
                lines += [
                    f"{world},{rank}," + ",".join(f"{value:.3f}" for value in row)
                    for row in table[:ROWS_A_RANK]
                ]
    options.out.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
