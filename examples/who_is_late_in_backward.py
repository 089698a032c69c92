"""Shows which rank delays the others inside backward, and in which layers.

Four ranks train under DDP. One of them has a hook in one layer that takes 20 ms. All ranks leave
backward together, so their stages are equally long. `my_utils run` times the buckets of DDP in some
steps, and the verdict names the rank and the layers. It needs only torch. In your
project:

    my_utils run torchrun --nproc-per-node 4 train.py
"""

import os
import subprocess
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

RANKS = 4
STEPS = 60
LAYERS = 12


def train() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    layers = nn.Sequential(*[nn.Sequential(nn.Linear(64, 64), nn.ReLU()) for _ in range(LAYERS)])
    if dist.get_rank() == 2:
        layers[5].register_full_backward_hook(lambda *_: time.sleep(0.02))
    model = DistributedDataParallel(layers, bucket_cap_mb=0.05)  # three layers a bucket
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(STEPS):
        model(torch.randn(16, 64)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    if sys.argv[1:] == ["train"]:
        train()
    else:
        launch = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        command = [sys.executable, "-m", "my_utils", "run", "-o", "out", "--", *launch]
        subprocess.run(
            [*command, f"--nproc-per-node={RANKS}", __file__, "train"],
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            check=True,
        )
