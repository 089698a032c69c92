"""Since which step have replicas drifted apart, and on which rank?

Four ranks train one model with DDP, and leave their passports every ten steps. At step 55 one
element on rank 2 is changed, as by a fault of its memory. `my_utils passport history` names the
parameter, the rows and the rank. It needs only torch.
"""

import subprocess
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.multiprocessing.spawn import spawn
from torch.nn.parallel import DistributedDataParallel

from my_utils.tensors import passport

RANKS, STEPS, EVERY, FAULT = 4, 80, 10, 55
FOLDER = Path("pp")


def train(rank: int, meeting_point: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", f"file://{meeting_point}", rank=rank, world_size=RANKS)
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(1, STEPS + 1):
        loss = model(torch.randn(16, 64)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if (step, rank) == (FAULT, 2):
            with torch.no_grad():
                model.module[0].weight[40, 7] += 0.001
        if step % EVERY == 0:
            passport(model, step=step).save(FOLDER / f"step{step}_rank{{rank}}.json")
    dist.destroy_process_group()


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    spawn(train, (str((FOLDER / "meeting").resolve()),), nprocs=RANKS)
    subprocess.run([sys.executable, "-m", "my_utils", "passport", "history", str(FOLDER)])
