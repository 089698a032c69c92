"""Trainings under DDP on two ranks, one of which pauses at a place in each step, or in some.

torchrun planted_loop.py HOW CASES

CASES: a list in JSON of (place, length of a pause in ms, rank, steps from one pause to the next);
instead of a rank "turns", where the two take turns. HOW: "traced", torch.profiler writes a trace of
the steps that count of each rank into NUMBER/traces; or "plain". Each rank writes into NUMBER/truth
what it measured with its own clock: for each of these steps how long it took, and paused.
"""

from __future__ import annotations

import io
import itertools
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, profile, record_function, schedule
from torch.utils.data import DataLoader, Dataset

WAIT, WARMUP, ACTIVE = 6, 2, 26
STEPS = WAIT + WARMUP + ACTIVE + 1
USUAL_S = 0.004
CHECKPOINT_EVERY = 5


class Plant:
    """Pauses where it is asked from, if that is its place and the step is one of its."""

    def __init__(self, place: str, pause_s: float, steps: range) -> None:
        self.place, self.pause_s, self.steps = place, pause_s, steps
        self.step = 0
        self.paused_s = [0.0] * (STEPS + 1)

    def __call__(self, place: str) -> None:
        if place == self.place and self.step in self.steps:
            began = time.perf_counter()
            time.sleep(self.pause_s)
            self.paused_s[self.step] += time.perf_counter() - began

    def __reduce__(self) -> tuple[type[int], tuple[()]]:
        """In a checkpoint: it takes as long to write."""
        self("in a checkpoint")
        return int, ()


class Rows(Dataset[torch.Tensor]):
    def __init__(self, plant: Plant) -> None:
        self.plant = plant

    def __len__(self) -> int:
        return STEPS

    def __getitem__(self, index: int) -> torch.Tensor:
        self.plant("in the loader")
        return torch.ones(64)


class Slow(torch.autograd.Function):
    """Both directions take as long; the plant may be in the second."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, plant: Plant) -> torch.Tensor:
        ctx.plant = plant
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        ctx.plant("in backward")
        time.sleep(USUAL_S)
        return gradients[0], None


class Model(torch.nn.Module):
    def __init__(self, plant: Plant) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Linear(64, 128), torch.nn.Linear(128, 16)
        self.plant = plant

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.plant("in forward")
        time.sleep(USUAL_S)
        with record_function("mixing"):
            self.plant("in a named range")
            x = torch.relu(self.first(x))
        y: torch.Tensor = self.second(Slow.apply(x, self.plant))  # type: ignore[no-untyped-call]
        return y


def batches(plant: Plant) -> Iterator[torch.Tensor]:
    loader = iter(DataLoader(Rows(plant), batch_size=1))
    for step in range(STEPS):
        plant.step = step
        if step == 0:
            plant("before the first step")
        plant("before the batch")
        yield next(loader)


def accumulate(model: DistributedDataParallel, batch: torch.Tensor, plant: Plant) -> None:
    """Gradients of two more batches, which are not reduced yet."""
    for place in ("before accumulation", "in accumulation"):
        with model.no_sync():
            out = model(batch)
            plant(place)
            out.square().mean().backward()


def train(plant: Plant, profiler: profile | None) -> list[float]:
    """The lengths of the steps, in seconds."""
    net = Model(plant)
    model = DistributedDataParallel(net)
    model.register_forward_pre_hook(lambda *_: plant("in a hook"))
    net.first.weight.register_hook(lambda _: plant("in a hook of a gradient"))
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    optimizer.register_step_pre_hook(lambda *_: plant("in the optimizer"))
    loss_of = torch.nn.MSELoss()
    loss_of.register_forward_pre_hook(lambda *_: plant("in the loss"))
    target, metric = torch.zeros(1, 16), torch.zeros(1)
    moments = [time.perf_counter()]
    for batch in batches(plant):
        plant("after the batch")
        plant("before zero_grad")
        optimizer.zero_grad()
        if plant.place == "in accumulation":
            accumulate(model, batch, plant)
        out = model(batch)
        plant("after forward")
        loss = loss_of(out, target)
        plant("before backward")
        loss.backward()
        plant("after backward")
        plant("before the optimizer")
        optimizer.step()
        plant("after the optimizer")
        if plant.place.endswith("a metric"):
            plant("before a metric")
            dist.all_reduce(metric)
            plant("after a metric")
        if plant.place == "in an evaluation":
            with torch.no_grad():
                plant("in an evaluation")
                net(batch)
        if plant.place == "in a checkpoint" and plant.step % CHECKPOINT_EVERY == 0:
            torch.save([net.state_dict(), plant], io.BytesIO())
        plant("at the end")
        if profiler is not None:
            profiler.step()
        moments.append(time.perf_counter())
    return [after - before for before, after in itertools.pairwise(moments)]


def run(case: tuple[str, float, int | str, int], how: str, folder: Path) -> None:
    place, pause_ms, slow, every = case
    torch.manual_seed(0)
    rank = dist.get_rank()
    steps = range(0, STEPS, every)
    if slow == "turns":
        steps = steps[rank::2]
    elif rank != slow or not pause_ms:
        steps = range(0)
    plant = Plant(place, pause_ms * 1e-3, steps)
    (folder / "truth").mkdir(parents=True, exist_ok=True)
    if how == "traced":
        trace = folder / "traces" / f"rank{rank}.json"
        trace.parent.mkdir(exist_ok=True)
        with profile(
            activities=[ProfilerActivity.CPU],
            schedule=schedule(wait=WAIT, warmup=WARMUP, active=ACTIVE, repeat=1),
            on_trace_ready=lambda done: done.export_chrome_trace(str(trace)),
        ) as profiler:
            took_s = train(plant, profiler)
    else:
        took_s = train(plant, None)
    rows = list(zip(took_s, plant.paused_s, strict=False))[WAIT + WARMUP : WAIT + WARMUP + ACTIVE]
    (folder / "truth" / f"rank{rank}.json").write_text(json.dumps(rows))
    dist.barrier()


def main(how: str, cases: str) -> None:
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    for number, case in enumerate(json.loads(cases)):
        run(case, how, Path(str(number)))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
