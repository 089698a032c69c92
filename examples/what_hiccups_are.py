"""Shows why every tenth step takes long.

The training keeps many objects, and each garbage collection visits all of them. It runs
under `my_utils run`, which records what the host does in each step, and the verdict names the cause
of the hiccups. It needs only torch. With the argument `gil` or `sleep` the hiccups have another
cause. In your project:

    my_utils run train.py
"""

import ctypes
import gc
import subprocess
import sys
import threading
import time

import torch
from torch import nn

STEPS = 60


def wait_for_the_gil() -> None:
    """A call of C on another thread does not let the GIL go."""
    thread = threading.Thread(target=ctypes.PyDLL(None).usleep, args=(100_000,))
    thread.start()
    thread.join()


def sleep() -> None:
    time.sleep(0.1)


def collect() -> None:
    gc.collect()


HICCUPS = {"collection": collect, "gil": wait_for_the_gil, "sleep": sleep}


def train(hiccup: str) -> None:
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
            HICCUPS[hiccup]()  # a collection comes by itself, now and then
    print(f"trained, {len(kept)} objects kept")


if __name__ == "__main__":
    if sys.argv[1:2] == ["train"]:
        train(sys.argv[2])
    else:
        hiccup = sys.argv[1] if len(sys.argv) > 1 else "collection"
        command = [sys.executable, "-m", "my_utils", "run", "-o", "out", "--", sys.executable]
        subprocess.run([*command, __file__, "train", hiccup], check=True)
