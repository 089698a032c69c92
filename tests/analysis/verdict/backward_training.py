"""The training of `backward_proof`: a rank that is slow in a layer's backward where the plan says.

The plan is a file: `wrapper first steps layers`, where wrapper is "ddp", "fsdp1" or "fsdp2", then a
line for each run of so many steps: `how rank layer ms`, where how is "waits", "computes" or
"healthy".
"""

from __future__ import annotations

import ctypes
import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

WIDTH = 96
BUCKET_MB = 0.1  # three layers


def compute(ms: float) -> None:
    until = time.thread_time() + ms / 1e3
    while time.thread_time() < until:
        pass


class Slow:
    """What a layer does after its backward."""

    def __init__(self, layers: nn.Sequential) -> None:
        self.how, self.layer, self.ms = "healthy", -1, 0.0
        for number, layer in enumerate(layers):
            layer.register_full_backward_hook(lambda *_, number=number: self.after(number))

    def after(self, layer: int) -> None:
        if layer == self.layer and self.how == "waits":
            time.sleep(self.ms / 1e3)
        elif layer == self.layer and self.how == "computes":
            compute(self.ms)


def wrapped(layers: nn.Sequential, wrapper: str) -> nn.Module:
    if wrapper == "ddp":
        return DistributedDataParallel(layers, bucket_cap_mb=BUCKET_MB)
    if wrapper == "fsdp1":
        return fully_sharded(layers)
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for layer in layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(layers, mesh=mesh)
    return layers


def fully_sharded(layers: nn.Sequential) -> nn.Module:
    from torch.distributed.fsdp import FullyShardedDataParallel

    cpu = torch.device("cpu")
    inner = (FullyShardedDataParallel(layer, device_id=cpu) for layer in layers)
    return FullyShardedDataParallel(nn.Sequential(*inner), device_id=cpu)


def main() -> None:
    ctypes.CDLL(None).prctl(1, 9)  # die with the parent
    torch.set_num_threads(1)
    head, *plan = Path(sys.argv[1]).read_text().splitlines()
    wrapper, *numbers = head.split()
    first, steps, count = map(int, numbers)
    dist.init_process_group("gloo")
    layers = nn.Sequential(
        *(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(count))
    )
    slow = Slow(layers)
    model = wrapped(layers, wrapper)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(first + steps * len(plan)):
        if step >= first and (step - first) % steps == 0:
            slow.how, rank, layer, ms = plan[(step - first) // steps].split()
            slow.layer = int(layer) if int(rank) == int(os.environ["RANK"]) else -1
            slow.ms = float(ms)
        model(torch.randn(32, WIDTH)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
