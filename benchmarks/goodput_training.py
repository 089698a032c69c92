"""A training that dies once and starts again: `goodput_training.py FOLDER`.

It appends what happens to `FOLDER/events.jsonl`, [name, Unix time, step] a line: what users of
ml-goodput-measurement write calls for, and the truth that both tools are held against.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import torch

FOLDER = Path(sys.argv[1])
FIRST_DIES_AFTER, STEPS, EVERY = 70, 110, 20


def event(name: str, step: int = -1, at: float | None = None) -> None:
    with (FOLDER / "events.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps([name, at or time.time(), step]) + "\n")


event("imported")
torch.set_num_threads(1)
model = torch.nn.Linear(256, 256)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
large = torch.ones(10_000_000)
checkpoint = FOLDER / "state.pt"
is_first = not (FOLDER / "died").exists()
time.sleep(1)
first = 0
if checkpoint.exists():
    began = time.time()
    state = torch.load(checkpoint)
    ended = time.time()
    event("restore", at=began)
    event("restored", at=ended)
    model.load_state_dict(state["model"])
    first = state["step"]
data: Any = [torch.ones(256)] * (STEPS - first)
loader: Any = torch.utils.data.DataLoader(data, batch_size=1)
event("prepared")
for number, batch in enumerate(loader):
    step = first + number
    event("step", step)
    model(batch).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    time.sleep(0.02)
    if step % EVERY == EVERY - 1:
        state = {"model": model.state_dict(), "step": step + 1, "big": large}
        began = time.time()
        torch.save(state, checkpoint)
        ended = time.time()
        event("save", step, began)
        event("saved", step, ended)
    if is_first and step == FIRST_DIES_AFTER:
        (FOLDER / "died").touch()
        event("died", step)
        os._exit(3)
event("done")
time.sleep(0.5)
event("ended")
