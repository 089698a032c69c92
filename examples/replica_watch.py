"""Do the replicas of a training still agree? And does a step repeat itself?

Four ranks train one model with DDP and watch their replicas every ten steps. At step 55 one element
on rank 2 is changed, as by a fault of its memory. `my_utils why` names the parameter, the rows, the
rank and the steps between which it happened. It needs only torch.
"""

import subprocess
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.multiprocessing.spawn import spawn
from torch.nn.parallel import DistributedDataParallel

from my_utils.tensors import ReplicaWatch

RANKS, STEPS, EVERY, FAULT = 4, 80, 10, 55
FOLDER = Path("logs/replicas")


def train(rank: int, meeting_point: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", f"file://{meeting_point}", rank=rank, world_size=RANKS)
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    watch = ReplicaWatch(model, every=EVERY, optimizer=optimizer, log_dir=FOLDER)

    def forward_and_backward(batch: torch.Tensor) -> torch.Tensor:
        loss: torch.Tensor = model(batch).square().mean()
        loss.backward()
        return loss

    for step in range(1, STEPS + 1):
        optimizer.zero_grad()
        forward_and_backward(torch.randn(16, 64))
        optimizer.step()
        if (step, rank) == (FAULT, 2):
            with torch.no_grad():
                model.module[0].weight[40, 7] += 0.001
        watch.step()

    batch = torch.randn(16, 64)
    replayed = watch.replay(lambda: forward_and_backward(batch))
    if rank == 0:
        print(replayed)
    watch.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    FOLDER.mkdir(parents=True, exist_ok=True)
    spawn(train, (str((FOLDER / "meeting").resolve()),), nprocs=RANKS)
    subprocess.run([sys.executable, "-m", "my_utils", "why", str(FOLDER)])
