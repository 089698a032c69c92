"""Mixed precision with a GradScaler on the CPU; every fifth iteration overflows and is skipped."""

import torch
from torch import nn

from tests.support.spans import iterated, span

model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
for step in range(20):
    x = torch.randn(64, 32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        with span("forward"):
            out = model(x)
        with span("loss"):
            loss = out.float().pow(2).mean()
            if step % 5 == 4:
                loss = loss * float("inf")
            scaled = scaler.scale(loss)
            optimizer.zero_grad()
    with span("backward"):
        scaled.backward()
    with span("optimizer"):
        scaler.step(optimizer)
    scaler.update()
    iterated()
results = [model, scaler.get_scale()]
