"""A training of small steps that another process disturbs.

    event_training.py FOLDER STEPS WORK MEETS

WORK: sleep, or compute besides, where there are processors for all ranks. MEETS: ddp or all_reduce.
Most of a step is sleep, as what computing takes depends on what other programs do. Each batch comes
from a server (`planting.py`). `FOLDER/begins` has of each rank its process and when each of its
steps began, by CLOCK_MONOTONIC in ns; a restarted rank goes on behind the last of them.
"""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch import nn

FOLDER, STEPS, WORK, MEETS = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4]
RANK, WORLD = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
ATTEMPT = os.environ["TORCHELASTIC_RESTART_COUNT"]
WORK_S, PRODUCTS = 0.008, 20

os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))  # other programs run here, too


class Batches(torch.utils.data.IterableDataset[torch.Tensor]):
    """One for each answer of the server."""

    def __iter__(self) -> Iterator[torch.Tensor]:
        server = socket.socket(socket.AF_UNIX)
        server.connect(str(FOLDER / "batches"))
        server.sendall(bytes([RANK]))
        while server.recv(1):
            yield torch.ones(1, 128)
            server.sendall(b"?")


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(128, 128)

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        time.sleep(WORK_S)
        if WORK == "compute":
            with torch.no_grad():
                product = torch.eye(128)
                for _ in range(PRODUCTS):
                    product = product @ product
        found: torch.Tensor = self.layer(batch)
        return found


torch.set_num_threads(1)
# A launcher's store keeps the addresses of the ranks that were before a restart.
dist.init_process_group(
    "gloo", init_method=f"file://{FOLDER}/store-{ATTEMPT}", rank=RANK, world_size=WORLD
)
begins = np.memmap(FOLDER / "begins", np.int64, "r+", shape=(WORLD, STEPS + 1))
done = torch.tensor(int(np.count_nonzero(begins[RANK, 1:])))
dist.all_reduce(done, dist.ReduceOp.MAX)
begins[RANK, 0] = os.getpid()
model: nn.Module = Model()
if MEETS == "ddp":
    model = nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
batches = iter(torch.utils.data.DataLoader(Batches(), batch_size=None))
for step in range(int(done), STEPS):
    begins[RANK, 1 + step] = time.monotonic_ns()
    batch = next(batches)
    loss = model(batch).sum()
    loss.backward()
    if MEETS == "all_reduce":
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
    optimizer.step()
    optimizer.zero_grad()
dist.barrier()
