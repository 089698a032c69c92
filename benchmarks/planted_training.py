"""A training on two ranks with one thing wrong with it: `planted_training.py PLANT STEPS`.

Nothing of my_utils is in it. Work is sleep, so that it takes as long on a busy machine. With
TRACEML=1 in the environment it has the lines that TraceML asks for.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import sys
import tempfile
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, Dataset

PLANT, STEPS = (sys.argv[1], int(sys.argv[2])) if __name__ == "__main__" else ("", 0)
RANK = int(os.environ.get("RANK", "0"))
BAD = RANK == 1
PERIOD = 12
MS = {"input": 0.3, "forward": 5.0, "backward": 6.0, "optimizer": 0.5}
BURSTS = [step for step in range(STEPS) if step % 17 < 5]  # of another program's
state = {"step": 0}
kept: list[bytearray] = []


def pause(ms: float) -> None:
    if ms > 0:
        time.sleep(ms / 1e3)


def extra(stage: str) -> float:
    """What the plant adds to a stage in this step, ms."""
    step = state["step"]
    match PLANT:
        case "slow loader on one rank":
            return 14.0 if stage == "input" and BAD else 0.0
        case "slow loader on all ranks":
            return 14.0 if stage == "input" else 0.0
        case "slow host":  # of two ranks it is one rank
            return 1.5 * MS[stage] if BAD else 0.0
        case "all ranks slower from a step on":
            return 14.0 if stage == "forward" and step >= STEPS // 2 else 0.0
        case "slow forward on one rank":
            return 14.0 if stage == "forward" and BAD else 0.0
        case "slow optimizer on all ranks":
            return 14.0 if stage == "optimizer" else 0.0
        case "one rank sleeps every 5th step":
            return 60.0 if stage == "forward" and BAD and step % 5 == 4 else 0.0
        case "CPU hog":
            long = BAD and step in BURSTS
            return MS[stage] * (4 + 5 * ((step * 2654435761 >> 7) % 3)) if long else 0.0
        case "uneven batches":
            return 12.0 * (((step * 2654435761 >> 7) % 2) == RANK) if stage == "forward" else 0.0
        case "falling throughput":
            return 3 * MS[stage] * step / STEPS
    return 0.0


class Rows(Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return STEPS

    def __getitem__(self, index: int) -> torch.Tensor:
        pause(MS["input"] + extra("input"))
        return torch.ones(16)


class Slow(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Linear(16, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        pause(MS["forward"] + extra("forward"))
        if PLANT == "GC pauses" and BAD and state["step"] % 9 == 8:
            for _ in range(5):
                gc.collect()
        out: torch.Tensor = self.net(x)
        if out.requires_grad:
            out.register_hook(lambda gradient: pause(MS["backward"] + extra("backward")))
        return out


def traced(model: nn.Module) -> contextlib.AbstractContextManager[None]:
    if os.environ.get("TRACEML") != "1":
        return contextlib.nullcontext()
    traceml_ai = importlib.import_module("traceml_ai")
    context: contextlib.AbstractContextManager[None] = traceml_ai.trace_step(model)
    return context


def after(model: nn.Module, folder: str) -> None:
    """What stands between two steps."""
    step = state["step"]
    if PLANT == "growing memory" and BAD:
        kept.append(bytearray(b"x" * (1 << 20)))
    elif PLANT == "checkpoint stalls" and step % PERIOD == PERIOD - 1:
        with open(f"{folder}/checkpoint", "wb") as file:
            torch.save(model.state_dict(), SlowFile(file))  # type: ignore[arg-type]
    elif PLANT == "evaluation" and step % PERIOD == PERIOD - 1:
        with torch.no_grad():
            for _ in range(30):
                model(torch.ones(1, 16))
    elif PLANT == "untimed work":
        pause(14.0)


class SlowFile:
    """A file on a slow disk."""

    def __init__(self, file: object) -> None:
        self.file = file

    def write(self, data: bytes) -> int:
        if state.get("written") != state["step"]:
            state["written"] = state["step"]
            pause(200.0)
        return self.file.write(data)  # type: ignore[attr-defined, no-any-return]

    def flush(self) -> None:
        self.file.flush()  # type: ignore[attr-defined]


def main() -> None:
    if os.environ.get("TRACEML") == "1":
        importlib.import_module("traceml_ai").init(mode="auto")
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    garbage = [[number] for number in range(400_000 if PLANT == "GC pauses" and BAD else 0)]
    model = nn.parallel.DistributedDataParallel(Slow())
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    optimizer.register_step_pre_hook(lambda *_: pause(MS["optimizer"] + extra("optimizer")))
    with tempfile.TemporaryDirectory() as folder:
        for x in DataLoader(Rows(), batch_size=1):
            with traced(model.module):
                optimizer.zero_grad()
                model(x).square().mean().backward()
                optimizer.step()
            after(model.module, folder)
            state["step"] += 1
    del garbage
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
