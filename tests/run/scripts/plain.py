"""One model, one optimizer, a loader, an evaluation every 20 iterations and a checkpoint."""

import tempfile

import torch
from torch import nn

from tests.support.spans import iterated, span

model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
dataset = torch.utils.data.TensorDataset(torch.randn(640, 64), torch.randint(0, 10, (640,)))
loader = torch.utils.data.DataLoader(dataset, batch_size=16, shuffle=True)
steps = 0
folder = tempfile.mkdtemp()
for _epoch in range(2):
    batches = iter(loader)
    while True:
        try:
            with span("input"):
                x, y = next(batches)
        except StopIteration:
            break
        with span("forward"):
            out = model(x)
        with span("loss"):
            loss = nn.functional.cross_entropy(out, y)
            loss = loss + 0 * sum(p.pow(2).sum() for p in model.parameters())
        with span("backward"):
            loss.backward()
        with span("optimizer"):
            optimizer.step()
        optimizer.zero_grad()
        iterated()
        steps += 1
        if steps % 20 == 0:
            with torch.no_grad(), span("eval"):
                model(x)
            with span("checkpoint"):
                torch.save(model.state_dict(), f"{folder}/model.pt")
results = [model, loss]
