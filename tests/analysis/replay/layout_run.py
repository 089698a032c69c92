"""A training in one of several layouts, on ranks that sleep instead of computing; one is slow.

torchrun layout_run.py LAYOUT SLOW_RANK
"""

from __future__ import annotations

import contextlib
import sys
import time
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed._functional_collectives import all_to_all_single
from torch.distributed.algorithms.join import Join
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.utils.data import DataLoader, Dataset

STEPS = 40
USUAL_S, SLOW_S = 0.006, 0.046
LOADS_S, LOADS_SLOWLY_S = 0.002, 0.030


class Rows(Dataset[torch.Tensor]):
    def __init__(self, takes_s: float) -> None:
        self.takes_s = takes_s

    def __len__(self) -> int:
        return STEPS

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(self.takes_s)
        return torch.ones(16)


class Block(torch.nn.Module):
    """takes_s: how long its forward sleeps. reduces: it ends with a collective, as Megatron's."""

    def __init__(self, takes_s: float, *, reduces: bool = False) -> None:
        super().__init__()
        self.a, self.b = torch.nn.Linear(16, 32), torch.nn.Linear(32, 16)
        self.takes_s, self.reduces = takes_s, reduces

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        time.sleep(self.takes_s)
        y: torch.Tensor = self.b(torch.relu(self.a(x)))
        if self.reduces:
            dist.all_reduce(y.detach())
        return y


def in_tensor_parallel(model: torch.nn.Sequential, mesh: DeviceMesh) -> None:
    for block in model:
        parallelize_module(block, mesh, {"a": ColwiseParallel(), "b": RowwiseParallel()})


def train(model: torch.nn.Module, loads_s: float) -> None:
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    for batch in DataLoader(Rows(loads_s), batch_size=1):
        model(batch).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def pipeline(rank: int, world: int, takes_s: float) -> None:
    model = Block(takes_s)
    stage = PipelineStage(
        model, rank, world, torch.device("cpu"),
        input_args=(torch.zeros(2, 16, requires_grad=rank > 0),),
        output_args=(torch.zeros(2, 16, requires_grad=True),),
    )  # fmt: skip
    schedule = Schedule1F1B(stage, n_microbatches=4, loss_fn=torch.nn.functional.mse_loss)
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    first = (torch.ones(8, 16),) if rank == 0 else ()
    last: dict[str, Any] = {}
    if rank == world - 1:
        last = {"target": torch.zeros(8, 16), "losses": []}
    for _ in range(STEPS):
        optimizer.zero_grad()
        schedule.step(*first, **last)
        optimizer.step()


class Experts(torch.nn.Module):
    """Each rank's tokens go to the experts of all ranks, and come back."""

    def __init__(self, takes_s: float) -> None:
        super().__init__()
        self.gate, self.expert = torch.nn.Linear(16, 16), torch.nn.Linear(16, 16)
        self.takes_s = takes_s

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        world = list(range(dist.get_world_size()))
        tokens = all_to_all_single(self.gate(x), None, None, world)
        time.sleep(self.takes_s)
        back: torch.Tensor = all_to_all_single(self.expert(tokens), None, None, world)
        return back


def train_experts(takes_s: float) -> None:
    model = Experts(takes_s)
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    for batch in DataLoader(Rows(LOADS_S), batch_size=1):
        model(batch.repeat(dist.get_world_size(), 1)).square().mean().backward()
        dist.all_reduce(model.gate.weight.grad)
        optimizer.step()
        optimizer.zero_grad()


def train_in_parts(parts: int, takes_s: float, *, syncs: bool) -> None:
    """Several batches a step under DDP. syncs: gradients are reduced after each of them."""
    model = torch.nn.parallel.DistributedDataParallel(Block(takes_s / parts))
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    for _ in range(STEPS):
        for part in range(parts):
            is_last = part == parts - 1
            with contextlib.nullcontext() if syncs or is_last else model.no_sync():
                model(torch.ones(1, 16)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def train_joined(takes_s: float) -> None:
    """Rank 0 has fewer batches than the others."""
    model = torch.nn.parallel.DistributedDataParallel(Block(takes_s))
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    with Join([model]):
        for _ in range(STEPS - 10 * (dist.get_rank() == 0)):
            model(torch.ones(1, 16)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()


def main(layout: str, slow: int) -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    rank, world = dist.get_rank(), dist.get_world_size()
    takes_s = SLOW_S if rank == slow else USUAL_S
    loads_s = LOADS_SLOWLY_S if rank == slow else LOADS_S
    if layout == "pipeline":
        pipeline(rank, world, takes_s)
    elif layout == "tensor parallel":
        model = torch.nn.Sequential(Block(USUAL_S), Block(USUAL_S))
        in_tensor_parallel(model, init_device_mesh("cpu", (world,), mesh_dim_names=("tp",)))
        train(model, loads_s)
    elif layout == "all_reduce in forward":
        blocks = [Block(USUAL_S, reduces=True) for _ in range(2)]
        train(torch.nn.Sequential(*blocks), loads_s)
    elif layout == "fully sharded, tensor parallel":
        mesh = init_device_mesh("cpu", (2, world // 2), mesh_dim_names=("dp", "tp"))
        model = torch.nn.Sequential(Block(takes_s), Block(takes_s))
        in_tensor_parallel(model, mesh["tp"])
        for block in model:
            fully_shard(block, mesh=mesh["dp"])
        fully_shard(model, mesh=mesh["dp"])
        train(model, LOADS_S)
    elif layout == "experts":
        train_experts(takes_s)
    elif layout == "no_sync":
        train_in_parts(4, takes_s, syncs=False)
    elif layout == "gradient accumulation":
        train_in_parts(4, takes_s, syncs=True)
    elif layout == "uneven":  # the slow rank has eight batches a step, and each takes as long
        train_in_parts(8 if rank == slow else 1, takes_s, syncs=False)
    elif layout == "Join":
        train_joined(takes_s)
    else:
        raise ValueError(layout)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
