"""A training that times its own parts, for the truth of a ledger: `training.py FOLDER PLANT…`.

It writes `FOLDER/truth-RANK-ATTEMPT.json`: by row, ns by its own clock.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import signal
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

FOLDER, *PLANTS = sys.argv[1:]
RANK, WORLD = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
ATTEMPT = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
STEPS, EVERY = 150, 10
CHECKPOINT = Path(FOLDER) / "state.pt"
truth: dict[str, int] = defaultdict(int)
kept: list[object] = []


@contextlib.contextmanager
def timed(row: str) -> Iterator[None]:
    begin = time.monotonic_ns()
    try:
        yield
    finally:
        truth[row] += time.monotonic_ns() - begin


def began_ns() -> int:
    """When this process began, on the axis of time.monotonic_ns."""
    ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    since_boot = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    return time.monotonic_ns() - since_boot + ticks * (10**9 // os.sysconf("SC_CLK_TCK"))


class Items(torch.utils.data.Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return STEPS

    def __getitem__(self, number: int) -> torch.Tensor:
        if "input" in PLANTS:
            time.sleep(0.004)
        return torch.ones(64)


def validate() -> None:
    """Batches of a loader, with work of the host between them. Truth is from the first forward to
    the last one: what comes before and after looks like anything else."""
    model.eval()
    begin = end = 0
    few = torch.utils.data.Subset(Items(), range(16))
    with torch.no_grad():
        for batch in torch.utils.data.DataLoader(few, batch_size=2):
            begin = begin or time.monotonic_ns()
            model(batch)
            end = time.monotonic_ns()
            while time.monotonic_ns() < end + 5_000_000:
                pass
    truth["evaluation"] += end - begin
    model.train()


def write() -> None:
    (Path(FOLDER) / f"truth-{RANK}-{ATTEMPT}.json").write_text(json.dumps(truth))


gc.disable()  # but for what is planted
torch.set_num_threads(1)
truth["imports"] = time.monotonic_ns() - began_ns()
if WORLD > 1:
    with timed("process group"):
        dist.init_process_group("gloo")
model: nn.Module = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))
if WORLD > 1:
    model = nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
first = 0
if CHECKPOINT.exists():
    with timed("restore"):
        state = torch.load(CHECKPOINT)
    first = state["step"]
if "launch" in PLANTS:
    time.sleep(1)
batches = iter(torch.utils.data.DataLoader(Items(), batch_size=1))
truth["launch"] = time.monotonic_ns() - began_ns() - truth["restore"]
for step in range(first, STEPS):
    with timed("input"):
        batch = next(batches)
    if "waiting" in PLANTS and RANK == 1:
        time.sleep(0.01)
    model(batch).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    if step % EVERY == EVERY - 1 and step > 30:
        if "evaluation" in PLANTS:
            with torch.no_grad(), timed("evaluation"):
                model(torch.ones(20_000, 64))
        if "validation" in PLANTS:
            validate()
        if "checkpoint" in PLANTS and RANK == 0:
            with timed("checkpoint"):
                torch.save({"step": step + 1, "big": torch.ones(2_000_000)}, CHECKPOINT)
        if "pause" in PLANTS:
            with timed("pause"):
                time.sleep(0.03)
        if "gc" in PLANTS:
            kept = [[] for _ in range(300_000)]
            with timed("gc"):
                gc.collect()
    if "death" in PLANTS and ATTEMPT == 0 and step == 104:
        write()
        os._exit(3)
    if "hang" in PLANTS and ATTEMPT == 0 and step == 100:
        with timed("hang"):
            time.sleep(8)
        write()
        os.kill(os.getpid(), signal.SIGKILL)
end_ns = time.monotonic_ns()
if "closing" in PLANTS:
    time.sleep(0.5)
truth["closing"] = time.monotonic_ns() - end_ns
write()
