"""Trains in a way in which torch works out shapes or graphs, with a tool and then bare.

    python traced_runs.py fsdp2

Each tool has fresh processes, forked once torch is imported: what torch works out once is kept in
caches, which would hide what a tool breaks there. Prints a line a tool.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from my_utils.compare_tool import CompareWithCPU, NanInfTracker, OpRecorder, open_module_tracker

TOOLS: dict[str, Callable[[], Any]] = {
    "compare": lambda: CompareWithCPU(verbose=False),
    "nan": NanInfTracker,
    "nan by step": lambda: NanInfTracker(sync="step"),
    "recorder": OpRecorder,
}


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, x: Tensor) -> Tensor:
        hidden: Tensor = self.up(x).relu()
        result: Tensor = self.down(hidden)
        return result


def local(tensor: Any) -> Tensor:
    own: Tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return own.detach().clone()


def steps(model: nn.Module, run: Callable[[], None], tool: Any) -> list[Tensor]:
    parameters = list(model.parameters())
    optimizer = torch.optim.AdamW(parameters, lr=0.01)
    torch.manual_seed(1)
    with open_module_tracker(model), tool:
        for _ in range(2):
            run()
            nn.utils.clip_grad_norm_(parameters, 1.0)
            optimizer.step()
            optimizer.zero_grad()
            tool.step()
    return [local(parameter) for parameter in parameters]


def trained(model: nn.Module, tool: Any) -> list[Tensor]:
    def run() -> None:
        model(torch.randn(4, 8)).square().mean().backward()

    return steps(model, run, tool)


def fsdp2(tool: Any) -> list[Tensor]:
    model = nn.Sequential(Net(), Net())
    for layer in model:
        fully_shard(layer)
    fully_shard(model)
    return trained(model, tool)


def tensor_parallel(tool: Any, mesh: Any = None) -> list[Tensor]:
    mesh = mesh or init_device_mesh("cpu", (2,), mesh_dim_names=("tp",))
    model = nn.Sequential(Net(), Net())
    for layer in model:
        plan = {"up": ColwiseParallel(), "down": RowwiseParallel()}
        parallelize_module(layer, mesh["tp"], plan)
        if "dp" in mesh.mesh_dim_names:
            fully_shard(layer, mesh=mesh["dp"])
    return trained(model, tool)


def both(tool: Any) -> list[Tensor]:
    return tensor_parallel(tool, init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp")))


def given_shapes(rank: int) -> dict[str, Any]:
    """What torch else works out by running the stage and its loss on memory that nobody filled."""
    received = torch.zeros(2, 8).requires_grad_(rank > 0)
    return {"input_args": received, "output_args": torch.zeros(2, 8).requires_grad_()}


def pipeline(tool: Any) -> list[Tensor]:
    rank = dist.get_rank()
    part = [Net(), Net()][rank]
    shapes: dict[str, Any] = {} if not isinstance(tool, NanInfTracker) else given_shapes(rank)
    stage = PipelineStage(part, rank, 2, torch.device("cpu"), **shapes)
    schedule = ScheduleGPipe(stage, 2, loss_fn=lambda y, wanted: (y - wanted).square().mean())

    def run() -> None:
        batch = torch.randn(4, 8)
        schedule.step(batch) if rank == 0 else schedule.step(target=batch)

    return steps(part, run, tool)


def fake(tool: Any) -> list[Tensor]:
    model = Net()
    with tool:
        with FakeTensorMode() as mode:
            shaped = torch.ones(3, 4).add(torch.tensor(2.0)).view(4, 3)
            nn.Linear(4, 4)(torch.randn(2, 4)).sum().backward()
        product = mode.from_tensor(torch.ones(3, 3)).mm(mode.from_tensor(torch.ones(3, 3)))
        loss = model(torch.randn(4, 8)).sum()
        loss.backward()
    shapes = torch.tensor([*shaped.shape, *shaped.stride(), *product.shape])
    return [shapes, loss.detach(), *(p.grad for p in model.parameters() if p.grad is not None)]


def compiled(tool: Any) -> list[Tensor]:
    torch._dynamo.reset()
    return trained(torch.compile(Net(), backend="aot_eager"), tool)  # type: ignore[arg-type]


def exported(tool: Any) -> list[Tensor]:
    model, batch = Net(), torch.randn(4, 8)
    with tool:
        made = torch.export.export(model, (batch,))
        result = made.module()(batch)
        chosen = torch.cond(batch.sum() > 0, torch.sin, torch.cos, (batch,))
    return [result.detach(), chosen, torch.tensor(len(made.graph.nodes))]


CASES: dict[str, tuple[Callable[[Any], list[Tensor]], int]] = {
    "fsdp2": (fsdp2, 2),
    "tensor parallel": (tensor_parallel, 2),
    "tensor parallel and fsdp2": (both, 4),
    "pipeline": (pipeline, 2),
    "FakeTensorMode": (fake, 1),
    "torch.compile": (compiled, 1),
    "torch.export": (exported, 1),
}


def one_rank(case: str, name: str, rank: int, store: str) -> None:
    train, world = CASES[case]
    if world > 1:
        dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world)
    tool = TOOLS[name]()
    results = []
    for one in (tool, CompareWithCPU(enabled=False)):
        torch.manual_seed(0)
        results.append(train(one))
    for ours, bare in zip(*results, strict=True):
        assert ours.dtype == bare.dtype and torch.equal(ours, bare), (ours, bare)
    assert tool.errors == 0
    if isinstance(tool, CompareWithCPU):
        assert tool.summary.passed > 0 and tool.summary.failed == 0, tool.summary.table()
    if isinstance(tool, NanInfTracker):
        assert not tool.findings, tool.findings
    if isinstance(tool, OpRecorder):
        assert tool.events
    if world > 1:
        dist.barrier()
        dist.destroy_process_group()


def main(case: str) -> None:
    torch.set_num_threads(1)
    for name in TOOLS:
        folder = tempfile.mkdtemp()
        children = []
        for rank in range(CASES[case][1]):
            child = os.fork()
            if not child:
                one_rank(case, name, rank, f"{folder}/store")
                sys.stdout.flush()
                os._exit(0)
            children.append(child)
        ended = [os.waitpid(child, 0)[1] for child in children]
        print(name, "good" if not any(ended) else f"ended with {ended}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
