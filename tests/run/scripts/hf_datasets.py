"""HF datasets read in each of their ways: rows, batches, streamed, and through a loader."""

import torch
from datasets import Dataset
from torch import nn

from tests.support.spans import iterated, span

xs, ys = torch.randn(48, 16), torch.randint(0, 4, (48,))
rows = Dataset.from_dict({"x": xs.numpy(), "y": ys.numpy()}).with_format("torch")
stream = rows.to_iterable_dataset(num_shards=2).map(lambda row: {"x": 2 * row["x"]})
model = nn.Linear(16, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for source in (
    rows,
    rows.iter(batch_size=8),
    rows.shuffle(seed=1).iter(batch_size=8, drop_last_batch=True),
    stream,
    stream.iter(batch_size=8),
    torch.utils.data.DataLoader(rows, batch_size=8),
    torch.utils.data.DataLoader(stream, batch_size=8),
):
    batches = iter(source)
    while True:
        try:
            with span("input"):
                batch = next(batches)
        except StopIteration:
            break
        with span("forward"):
            out = model(batch["x"])
        with span("loss"):
            loss = nn.functional.cross_entropy(out, batch["y"])
        with span("backward"):
            loss.backward()
        with span("optimizer"):
            optimizer.step()
        optimizer.zero_grad()
        iterated()
results = [model]
