"""An optimizer that warms up and is never used again; the second one takes over."""

import torch
from torch import nn

from tests.support.spans import iterated, span

model = nn.Linear(16, 1)
warm = torch.optim.SGD(model.parameters(), lr=0.01)
main = torch.optim.Adam(model.parameters())
for step in range(40):
    with span("forward"):
        out = model(torch.randn(8, 16))
    with span("loss"):
        loss = out.pow(2).mean()
    with span("backward"):
        loss.backward()
    with span("optimizer"):
        (warm if step < 5 else main).step()
    model.zero_grad()
    iterated()
results = [model]
