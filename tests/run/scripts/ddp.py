"""DDP on two ranks over gloo, with a BatchNorm whose buffers are broadcast and a collective."""

import os

import torch
import torch.distributed as dist
from torch import nn

from tests.support.spans import iterated, span

dist.init_process_group("gloo")
rank = int(os.environ["RANK"])
net = nn.Sequential(nn.Linear(64, 128), nn.BatchNorm1d(128), nn.ReLU(), nn.Linear(128, 10))
model = nn.parallel.DistributedDataParallel(net)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(15):
    x = torch.randn(32, 64)
    with span("forward"):
        out = model(x)
    with span("loss"):
        loss = out.pow(2).mean()
    with span("backward"):
        loss.backward()
    with span("optimizer"):
        optimizer.step()
    optimizer.zero_grad()
    iterated()
    total = loss.detach()
    with span("collective"):
        dist.all_reduce(total)
    if step % 5 == 4:
        with torch.no_grad(), span("eval"):
            model.module(x)
results = [net]
with span("collective"):
    dist.barrier()
dist.destroy_process_group()
