"""Two ranks that meet in a group of both, in checkpoints, and not in a group of one."""

import tempfile
import warnings

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn

from tests.support.spans import iterated, span

warnings.simplefilter("ignore")  # torch warns where it saves without shards, and where no member is
dist.init_process_group("gloo")
alone, both = dist.new_group([1]), dist.new_group([0, 1])
model = nn.Linear(32, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
shared = [tempfile.mkdtemp()]
dist.broadcast_object_list(shared, 0)
for step in range(10):
    with span("forward"):
        out = model(torch.ones(8, 32))
    with span("loss"):
        loss = out.pow(2).mean()
    with span("backward"):
        loss.backward()
    for parameter in model.parameters():
        with span("collective"):
            dist.all_reduce(parameter.grad, dist.ReduceOp.SUM, alone)
    with span("collective"):
        dist.barrier(both)
    with span("optimizer"):
        optimizer.step()
    optimizer.zero_grad()
    iterated()
    if step % 4 == 3:
        with span("checkpoint"):
            dcp.save({"model": model.state_dict()}, checkpoint_id=f"{shared[0]}/{step}")
results = [model]
with span("collective"):
    dist.barrier()
dist.destroy_process_group()
