"""FSDP2 on two ranks over gloo on the CPU."""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

from tests.support.spans import iterated, span

dist.init_process_group("gloo")
blocks = (nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 32)) for _ in range(2))
model = nn.Sequential(*blocks)
mesh = dist.init_device_mesh("cpu", (2,))
for layer in model:
    fully_shard(layer, mesh=mesh)
fully_shard(model, mesh=mesh)
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(10):
    x = torch.randn(16, 32)
    with span("forward"):
        out = model(x)
    with span("loss"):
        loss = out.pow(2).mean()
    with span("backward"):
        loss.backward()
    with span("collective"):
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    with span("optimizer"):
        optimizer.step()
    optimizer.zero_grad()
    iterated()
results = [parameter.to_local() for parameter in model.parameters()]
with span("collective"):
    dist.barrier()
dist.destroy_process_group()
