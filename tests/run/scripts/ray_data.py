"""Ray Data on this machine: rows, batches and batches of tensors."""

import numpy as np
import ray
import torch
from torch import nn

from tests.support.spans import iterated, span

ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
ray.data.DataContext.get_current().enable_progress_bars = False
data = ray.data.from_numpy(np.random.default_rng(3).normal(size=(32, 16)).astype(np.float32))
model = nn.Linear(16, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for source in (
    data.iter_rows(),
    data.iter_batches(batch_size=8),
    data.iter_torch_batches(batch_size=8),
):
    batches = iter(source)
    while True:
        try:
            with span("input"):
                batch = next(batches)
        except StopIteration:
            break
        x = torch.as_tensor(batch["data"])
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
results = [model]
ray.shutdown()
