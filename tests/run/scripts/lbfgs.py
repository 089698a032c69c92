"""LBFGS calls its closure many times in a step; forward, loss and backward lie inside."""

import torch
from torch import nn

from tests.support.spans import iterated, span

model = nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 1))
optimizer = torch.optim.LBFGS(model.parameters(), lr=0.5)
x, y = torch.randn(200, 16), torch.randn(200, 1)
closures = 0


def closure():
    global closures
    closures += 1
    optimizer.zero_grad()
    with span("forward"):
        out = model(x)
    with span("loss"):
        loss = nn.functional.mse_loss(out, y)
    with span("backward"):
        loss.backward()
    return loss


for _ in range(6):
    with span("step"):
        optimizer.step(closure)
    iterated()
    with torch.no_grad(), span("eval"):
        model(x)
results = [model, closures]
