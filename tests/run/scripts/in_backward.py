"""Optimizers that step in hooks inside the backward, one a parameter."""

import torch
from torch import nn

from tests.support.spans import iterated, span

model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 1))
optimizers = {p: torch.optim.SGD([p], lr=0.01) for p in model.parameters()}


def step(parameter):
    optimizers[parameter].step()
    optimizers[parameter].zero_grad()


for parameter in model.parameters():
    parameter.register_post_accumulate_grad_hook(step)
for _ in range(20):
    with span("forward"):
        out = model(torch.randn(64, 32))
    with span("loss"):
        loss = out.pow(2).mean()
    with span("backward"):
        loss.backward()
    iterated()
results = [model]
