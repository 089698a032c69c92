"""Is the new version of a training slower, and in which stage?

Both versions run three times, in turns, under `my_utils run`; then they are compared. The new one
takes ten times as long to load its batches; smaller differences need five runs a side. It needs
only torch. In your project the last lines are one command:

    my_utils run --repeat 5 --against 'train.py --new' train.py
"""

import subprocess
import sys
import time
from collections.abc import Iterator

import torch
from torch import nn

STEPS = 40


def batches(seconds: float) -> Iterator[torch.Tensor]:
    for _ in range(STEPS):
        time.sleep(seconds)
        yield torch.randn(32, 64)


def train(seconds_to_load: float) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for batch in batches(seconds_to_load):
        loss = model(batch).square().mean()
        time.sleep(0.005)  # the rest of a step
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def compare() -> None:
    old = [sys.executable, __file__, "0.002"]
    new = f"{sys.executable} '{__file__}' 0.02"
    command = [sys.executable, "-m", "my_utils", "run", "-o", "out", "--repeat", "3"]
    subprocess.run([*command, "--against", new, "--", *old], check=True)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        train(float(sys.argv[1]))
    else:
        compare()
