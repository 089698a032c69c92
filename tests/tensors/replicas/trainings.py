"""Trainings of real ranks over gloo whose replicas are watched, and faults that are planted."""

from __future__ import annotations

from pathlib import Path

from my_utils.tensors.replicas.compare import compare_replicas
from my_utils.tensors.replicas.result import ReplicasData

from ...support.ranks import Ranks

PROGRAM = """
import random
import torch.nn as nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel as DDP
from my_utils import GlobalLogger
from my_utils.tensors import ReplicaWatch
torch.set_num_threads(1)

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.Linear(256, 64)  # a row has 1 KiB
        self.norm = nn.BatchNorm1d(64)
        self.drop = nn.Dropout(0.1)
        self.down = nn.Linear(64, 256)
        self.head = nn.Linear(256, 1, bias=False)

    def forward(self, x):
        return self.head(self.down(self.drop(self.norm(self.up(x)))))

def hsdp(net):
    mesh = init_device_mesh("cpu", (2, world // 2), mesh_dim_names=("data", "shard"))
    return fully_shard(net, mesh=mesh)

def adamw(parameters):
    return torch.optim.AdamW(parameters, lr=1e-3)

def sgd(parameters):
    return torch.optim.SGD(parameters, lr=1e-2, momentum=0.9)

def local(tensor):
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor

def flip(tensor, row, column, bit):
    with torch.no_grad():
        local(tensor).view(torch.int32)[row, column] ^= (1 << bit) - (1 << 32) * (bit == 31)

def train(name, wrap=DDP, optimizer=adamw, fault=lambda *args: None, steps=40, every=10, seed=0,
          checks_state=True, unreduced=()):
    # unreduced: (step, rank, name) of gradients that are left out of the reduction.
    GlobalLogger().setup(name, rank=rank, world_size=world, console=False)
    torch.manual_seed(seed)
    net = Net()
    model = wrap(net)
    update = optimizer(model.parameters())
    watch = ReplicaWatch(
        net, every, update if checks_state else None, gradients=checks_state)
    torch.manual_seed(1000 * seed + rank)
    for step in range(1, steps + 1):
        x = torch.randn(8, 256)
        update.zero_grad()
        model(x).square().mean().backward()
        for when, who, which in unreduced:
            if (when, who) == (step, rank):
                parameter = dict(net.named_parameters())[which]
                loss = (net(x) + net(torch.randn(8, 256))).square().mean()
                parameter.grad = torch.autograd.grad(loss, parameter)[0]
        update.step()
        fault(step, net, update)
        watch.step()
    watch.close()
"""


def run(program: str, world: int, folder: Path, timeout_s: float = 400) -> None:
    text = f"{PROGRAM}\n{program}\nGlobalLogger().close()\ndist.destroy_process_group()\n"
    results = Ranks(text, world, folder).finish(timeout_s=timeout_s)
    assert [status for status, _, _ in results] == [0] * world, results


def found_in(folder: Path) -> ReplicasData:
    found = compare_replicas([str(folder)])
    assert found is not None
    return found


def texts(folder: Path) -> list[str]:
    """Of the differences, without the beginning that they have in common."""
    return [
        one["text"].removeprefix("replicas differ since ")
        for one in found_in(folder)["differences"]
    ]
