"""Two tar files read by WebDataset: samples, batches, and through its loader."""

import io
import tempfile

import torch
import webdataset as wds
from torch import nn

from tests.support.spans import iterated, span

folder = tempfile.mkdtemp()
for shard in range(2):
    with wds.TarWriter(f"{folder}/{shard}.tar") as writer:
        for number in range(16):
            stored = io.BytesIO()
            torch.save(torch.randn(16), stored)
            writer.write({"__key__": f"{shard}{number:03d}", "x.pth": stored.getvalue(),
                          "y.cls": number % 4})  # fmt: skip


def samples() -> wds.WebDataset:
    files = [f"{folder}/{shard}.tar" for shard in range(2)]
    return wds.WebDataset(files, shardshuffle=False).decode().to_tuple("x.pth", "y.cls")


model = nn.Linear(16, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for source in (
    samples(),
    samples().batched(8),
    wds.WebLoader(samples().batched(8), batch_size=None),
    torch.utils.data.DataLoader(samples().batched(8), batch_size=None),
):
    batches = iter(source)
    while True:
        try:
            with span("input"):
                x, y = next(batches)
        except StopIteration:
            break
        with span("forward"):
            out = model(x).reshape(-1, 4)
        with span("loss"):
            loss = nn.functional.cross_entropy(out, torch.as_tensor(y).reshape(-1))
        with span("backward"):
            loss.backward()
        with span("optimizer"):
            optimizer.step()
        optimizer.zero_grad()
        iterated()
results = [model]
