"""Three ranks, the first two of which send to each other, in a batch, in a group of theirs."""

import torch
import torch.distributed as dist
from torch import nn

from tests.support.spans import iterated, span

dist.init_process_group("gloo")
rank = dist.get_rank()
pair = dist.new_group([0, 1])
model = nn.Linear(32, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(10):
    with span("forward"):
        out = model(torch.ones(8, 32))
    with span("loss"):
        loss = out.pow(2).mean()
    with span("backward"):
        loss.backward()
    if rank < 2:
        sent, received = torch.full((4,), float(step)), torch.empty(4)
        operations = [
            dist.P2POp(dist.isend, sent, 1 - rank, pair),
            dist.P2POp(dist.irecv, received, 1 - rank, pair),
        ]
        with span("collective"):
            works = dist.batch_isend_irecv(operations)
        for work in works:
            with span("collective"):
                work.wait()
        assert torch.equal(received, sent)
    with span("optimizer"):
        optimizer.step()
    optimizer.zero_grad()
    iterated()
results = [model]
with span("collective"):
    dist.barrier()
dist.destroy_process_group()
