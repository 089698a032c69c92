"""A training of one rank on a GPU with a planted cause: `python gpu_training.py CAUSE`.

input: the loader sleeps 26 ms a step. copies: 256 MB a step from pageable memory. launches: 300
small layers. compute: large layers, ahead of which the host runs. reading the loss: the same, and
the host waits for the loss in each step.
"""

from __future__ import annotations

import sys
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

STEPS, BATCH = 120, 32
LAYERS = {"input": 4, "copies": 4, "launches": 300, "compute": 6, "reading the loss": 6}
WIDTH = {"launches": 64, "compute": 8192, "reading the loss": 8192}
REPEATS = {"compute": 16, "reading the loss": 16}  # of a batch, on the GPU


class Samples(Dataset[torch.Tensor]):
    def __init__(self, width: int, sleeps_s: float) -> None:
        self.width, self.sleeps_s = width, sleeps_s

    def __len__(self) -> int:
        return STEPS * BATCH

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(self.sleeps_s)
        return torch.ones(self.width)


def train(cause: str) -> None:
    width = WIDTH.get(cause, 4096)
    layers = [nn.Linear(width, width, bias=False) for _ in range(LAYERS[cause])]
    model = nn.Sequential(*layers).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    pageable = torch.ones(64 << 20) if cause == "copies" else None
    for batch in DataLoader(Samples(width, 0.0008 if cause == "input" else 0.0), batch_size=BATCH):
        x = batch.cuda(non_blocking=True).repeat(REPEATS.get(cause, 1), 1)
        if pageable is not None:
            pageable.cuda()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if cause == "reading the loss":
            loss.item()
    torch.cuda.synchronize()


if __name__ == "__main__":
    train(sys.argv[1])
