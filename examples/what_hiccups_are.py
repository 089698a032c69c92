"""Every tenth step takes long: why?

The training keeps many objects, and each garbage collection looks at all of them. It runs without
an edit under `my_utils run`, which records what the host took from each step, and the verdict says
what the hiccups were. Run it as it is; torch is all it needs. In a project of your own:

    my_utils run train.py
"""

import gc
import subprocess
import sys
import time

import torch
from torch import nn

STEPS = 60


def train() -> None:
    kept = [[number] for number in range(1_000_000)]  # vocabularies, caches, file lists
    gc.disable()
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(STEPS):
        loss = model(torch.randn(32, 64)).square().mean()
        time.sleep(0.005)  # the rest of a step
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % 10 == 9:
            gc.collect()  # as Python does by itself, now and then
    print(f"trained, {len(kept)} objects kept")


if __name__ == "__main__":
    if sys.argv[1:] == ["train"]:
        train()
    else:
        command = [sys.executable, "-m", "my_utils", "run", "-o", "out", "--", sys.executable]
        subprocess.run([*command, __file__, "train"], check=True)
