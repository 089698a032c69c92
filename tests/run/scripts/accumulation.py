"""Gradients of four batches for one step; the loss is computed after the labels have moved."""

import sys

import torch
from torch import nn

from tests.support.spans import iterated, span

model = nn.Sequential(nn.Linear(64, 128), nn.Tanh(), nn.Linear(128, 8))
optimizer = torch.optim.AdamW(model.parameters())
batches = int(sys.argv[1]) if len(sys.argv) > 1 else 4
for _ in range(12):
    for _ in range(batches):
        with span("forward"):
            out = model(torch.randn(32, 64))
        with span("loss"):
            loss = (out**2).mean() / batches
        with span("backward"):
            loss.backward()
    with span("optimizer"):
        optimizer.step()
    optimizer.zero_grad()
    iterated()
results = [model]
