"""A loop with Accelerate: accumulation, clipping, a wrapped optimizer and loader."""

import torch
from accelerate import Accelerator
from torch import nn

from tests.support.spans import iterated, span

accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 4))
optimizer = torch.optim.AdamW(model.parameters())
data = torch.utils.data.TensorDataset(torch.randn(160, 32), torch.randint(0, 4, (160,)))
loader = torch.utils.data.DataLoader(data, batch_size=8)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
for x, y in loader:
    with accelerator.accumulate(model):
        with span("forward"):
            out = model(x)
        with span("loss"):
            loss = nn.functional.cross_entropy(out, y)
        accelerator.backward(loss)
        if accelerator.sync_gradients:
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if accelerator.sync_gradients:
            iterated()
results = [model]
