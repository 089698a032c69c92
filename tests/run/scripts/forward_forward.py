"""Forward-forward: every layer has its own optimizer and trains by itself."""

import torch
from torch import nn

from tests.support.spans import iterated, span

layers = [nn.Linear(32, 64), nn.Linear(64, 64), nn.Linear(64, 64)]
optimizers = [torch.optim.Adam(layer.parameters(), lr=0.01) for layer in layers]
for _ in range(15):
    good, bad = torch.randn(64, 32) + 1, torch.randn(64, 32)
    for layer, optimizer in zip(layers, optimizers, strict=True):
        with span("forward"):
            positive = layer(good)
        with span("forward"):
            negative = layer(bad)
        with span("loss"):
            goodness = torch.relu(positive).pow(2).mean(1), torch.relu(negative).pow(2).mean(1)
            loss = torch.log1p(torch.exp(torch.cat([2 - goodness[0], goodness[1] - 2]))).mean()
            optimizer.zero_grad()
        with span("backward"):
            loss.backward()
        with span("optimizer"):
            optimizer.step()
        good, bad = torch.relu(positive.detach()), torch.relu(negative.detach())
    iterated()
results = layers
