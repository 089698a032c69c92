"""No optimizer at all: the parameters are updated by hand."""

import torch
from torch import nn

from tests.support.spans import iterated, span

model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 1))
for _ in range(30):
    with span("forward"):
        out = model(torch.randn(64, 32))
    with span("loss"):
        loss = out.pow(2).mean()
    with span("backward"):
        loss.backward()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter -= 0.01 * parameter.grad
            parameter.grad = None
    iterated()
results = [model]
