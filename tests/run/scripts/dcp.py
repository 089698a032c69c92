"""torch.distributed.checkpoint: saved by one call, and asynchronously."""

import tempfile

import torch
import torch.distributed.checkpoint as dcp
from torch import nn

from tests.support.spans import iterated, span

torch.distributed.init_process_group(
    "gloo", rank=0, world_size=1, store=torch.distributed.HashStore()
)
folder = tempfile.mkdtemp()
model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(12):
    with span("forward"):
        out = model(torch.randn(16, 64))
    with span("loss"):
        loss = out.pow(2).mean()
    with span("backward"):
        loss.backward()
    with span("optimizer"):
        optimizer.step()
    optimizer.zero_grad()
    iterated()
    if step % 5 == 4:
        with span("checkpoint"):
            dcp.save({"model": model.state_dict()}, checkpoint_id=f"{folder}/{step}")
        with span("checkpoint"):
            saved = dcp.async_save({"model": model.state_dict()}, checkpoint_id=f"{folder}/a{step}")
        saved.result()
results = [model]
with span("collective"):
    torch.distributed.barrier()
torch.distributed.destroy_process_group()
