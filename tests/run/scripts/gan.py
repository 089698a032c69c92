"""Two models and two optimizers, as in DCGAN; the discriminator steps first."""

import torch
from torch import nn

from tests.support.spans import iterated, span

D = nn.Sequential(nn.Linear(32, 64), nn.LeakyReLU(0.2), nn.Linear(64, 1))
G = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 32))
optimizer_d = torch.optim.Adam(D.parameters(), lr=2e-4)
optimizer_g = torch.optim.Adam(G.parameters(), lr=2e-4)
criterion = nn.BCEWithLogitsLoss()
loader = torch.utils.data.DataLoader(torch.randn(400, 32), batch_size=16)
for _ in range(2):
    batches = iter(loader)
    while True:
        try:
            with span("input"):
                real = next(batches)
        except StopIteration:
            break
        D.zero_grad()
        with span("forward"):
            out = D(real)
        with span("loss"):
            loss = criterion(out, torch.ones_like(out))
        with span("backward"):
            loss.backward()
        noise = torch.randn(16, 8)
        with span("forward"):
            fake = G(noise)
        with span("forward"):
            out = D(fake.detach())
        with span("loss"):
            loss = criterion(out, torch.zeros_like(out))
        with span("backward"):
            loss.backward()
        with span("optimizer"):
            optimizer_d.step()
        G.zero_grad()
        with span("forward"):
            out = D(fake)
        with span("loss"):
            loss = criterion(out, torch.ones_like(out))
        with span("backward"):
            loss.backward()
        with span("optimizer"):
            optimizer_g.step()
        iterated()
results = [D, G]
