"""The comparison tools around real training: autograd, AMP, checkpointing, DDP, FSDP2, compile."""

from __future__ import annotations

import contextlib
import gc
import logging
import re
import weakref
from pathlib import Path
from typing import Any, cast

import pytest

pytest.importorskip("torch", reason="torch is not installed")

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from my_utils.compare_tool import (
    CompareWithCPU,
    ModuleInfo,
    NanInfTracker,
    OpRecorder,
    open_module_tracker,
)
from my_utils.core import warnings as _warnings
from my_utils.profilers.operators.module_path import OUTSIDE, where

from ...support.op_faults import Fault, one_wrong_element
from ...support.ranks import Ranks

aten = torch.ops.aten
pytestmark = pytest.mark.usefixtures("same_numbers")


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(8, 8)
        self.act = nn.ReLU(inplace=True)
        self.out = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.out(self.act(self.fc(x)))
        return x + y


class Net(nn.Module):
    def __init__(self, reentrant: bool | None = None) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Block() for _ in range(2))
        self.reentrant = reentrant

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            if self.reentrant is None:
                x = layer(x)
            else:
                x = checkpoint(layer, x, use_reentrant=self.reentrant)
        return x


def titles(text: str, phase: str) -> list[str]:
    return re.findall(rf"^(\S+)\({phase}\) succeeds", text, re.M)


def test_backward_operators_have_the_module_of_their_forward(
    capsys: pytest.CaptureFixture[str],
) -> None:
    model = Net()
    with open_module_tracker(model), CompareWithCPU(target_list=["mm", "threshold_backward"]):
        model(torch.randn(4, 8)).sum().backward()
    found = titles(capsys.readouterr().out, "backward")
    names = [re.findall(r"\[(.*)\]/torch.ops.aten.(\w+)", title)[0] for title in found]
    assert names == [
        ("layers.1.out", "mm"),
        ("layers.1.out", "mm"),
        ("layers.1.act", "threshold_backward"),
        ("layers.1.fc", "mm"),
        ("layers.1.fc", "mm"),
        ("layers.0.out", "mm"),
        ("layers.0.out", "mm"),
        ("layers.0.act", "threshold_backward"),
        ("layers.0.fc", "mm"),
    ]


def test_two_forward_passes_before_their_backward_passes() -> None:
    model = Net()
    with open_module_tracker(model), OpRecorder(target_list=["mm"]) as recorder:
        first = model(torch.randn(4, 8)).sum()
        model.layers[0](torch.randn(4, 8))
        second = model(torch.randn(4, 8)).sum()
        first.backward()
        second.backward()
    assert all(event.module.startswith("layers.") for event in recorder.events)
    assert len(recorder.events) == 14


def test_a_place_does_not_outlast_its_module() -> None:
    """Modules of a new model may have the ids of those of one that is gone."""
    first, second = nn.Linear(4, 4), nn.Linear(4, 4)
    model = nn.Sequential()
    infos: list[ModuleInfo | None] = []
    first.register_forward_pre_hook(lambda *_: infos.append(ModuleInfo.current()))
    other = type("Other", (nn.Sequential,), {})
    for kind, order in ((nn.Sequential, (first, second)), (other, (second, first))):
        model.__class__ = kind
        model._modules.clear()
        for number, module in enumerate(order):
            model.add_module(f"at{number}", module)
        with open_module_tracker(model):
            model(torch.randn(2, 4))
    assert infos == [
        ModuleInfo("at0", "Linear", "Sequential/Linear"),
        ModuleInfo("at1", "Linear", "Other/Linear"),
    ]


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointing(reentrant: bool, capsys: pytest.CaptureFixture[str]) -> None:
    model = Net(reentrant)
    x = torch.randn(4, 8, requires_grad=True)
    with open_module_tracker(model), CompareWithCPU() as compare:
        for _ in range(2):
            model(x).sum().backward()
        assert where() is OUTSIDE and ModuleInfo.current() is None
    assert compare.summary.failed == 0 and compare.errors == 0
    text = capsys.readouterr().out
    again = "Net/Block/Linear[layers.1.fc]/torch.ops.aten.addmm"
    assert titles(text, "recompute").count(again) == 2
    assert "Net/Block/Linear[layers.0.fc]/torch.ops.aten.mm" in titles(text, "backward")


def test_an_exception_in_a_module_leaves_no_place_open() -> None:
    model = Net()
    with open_module_tracker(model), CompareWithCPU(verbose=False) as compare:
        with pytest.raises(RuntimeError):
            model(torch.randn(4, 3))
        assert where() is OUTSIDE
        model(torch.randn(4, 8))
    assert "" not in {row.module for row in compare.summary.rows if "addmm" in row.op}


class Interrupted(nn.Module):
    """A linear layer on which Ctrl-C is pressed, once, as it runs."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(2, 2)
        self.presses = 1

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.presses:
            self.presses -= 1
            raise KeyboardInterrupt
        return cast(torch.Tensor, self.inner(x))


class Retries(nn.Sequential):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with pytest.raises(KeyboardInterrupt):
            super().forward(x)  # type: ignore[no-untyped-call]
        self.seen = [where().text]
        again: torch.Tensor = super().forward(x)  # type: ignore[no-untyped-call]
        return again


def places(run: Any) -> list[tuple[str, str]]:
    with OpRecorder(target_list=["mm", "addmm", "sum", "mul"]) as recorder:
        run()
    return [(event.module, event.phase) for event in recorder.events]


def test_a_keyboard_interrupt_leaves_no_place_open() -> None:
    model = nn.Sequential(Interrupted())
    x = torch.ones(1, 2)
    with open_module_tracker(model):
        with pytest.raises(KeyboardInterrupt):
            model(x)
        assert ModuleInfo.current() is None
        assert places(lambda: model(x).sum().backward()) == [
            ("0.inner/aten.addmm", "forward"),
            ("aten.sum", "forward"),
            ("0.inner/aten.mm(backward)", "forward"),
            ("0.inner/aten.sum(backward)", "forward"),
        ]


def test_a_keyboard_interrupt_that_a_module_handles() -> None:
    model = Retries(Interrupted())
    with open_module_tracker(model):
        assert [name for name, _ in places(lambda: model(torch.ones(1, 2)))] == [
            "0.inner/aten.addmm"
        ]
        assert where() is OUTSIDE
    assert model.seen == ["Retries/"]


def test_a_closed_tracker_keeps_nothing_of_an_interrupted_call() -> None:
    model = nn.Sequential(Interrupted())
    with open_module_tracker(model):
        x = torch.ones(1, 2)
        alive = weakref.ref(x)
        with contextlib.suppress(KeyboardInterrupt):
            model(x)
        del x
    gc.collect()
    assert alive() is None
    x = torch.ones(2, requires_grad=True)
    assert places(lambda: x.mul(2).sum().backward()) == [
        ("aten.mul", "forward"),
        ("aten.sum", "forward"),
        ("aten.mul(backward)", "forward"),
    ]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_and_grad_scaler(dtype: torch.dtype) -> None:
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
    with open_module_tracker(model), CompareWithCPU(verbose=False) as compare:
        for _ in range(2):
            with torch.autocast("cpu", dtype=dtype):
                loss = model(torch.randn(4, 8)).square().mean()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
    assert compare.summary.failed == 0 and compare.errors == 0
    fault, halves = Fault(aten.mm, one_wrong_element, 1), torch.autocast("cpu", dtype=dtype)
    with fault, halves, open_module_tracker(model), CompareWithCPU(verbose=False) as compare:
        model(torch.randn(4, 8)).sum().backward()
    failed = [(row.op, row.module) for row in compare.summary.rows if row.failed]
    assert failed == [("torch.ops.aten.mm", "layers.1.out")]


def test_inference_mode_no_grad_and_functional_transforms() -> None:
    model = Net()
    with open_module_tracker(model), CompareWithCPU(verbose=False) as compare:
        with torch.inference_mode():
            model(torch.randn(4, 8)).reshape(2, 16).contiguous()
        with torch.no_grad():
            model(torch.randn(4, 8))
        torch.func.vmap(torch.func.grad(lambda x: x.square().sum()))(torch.randn(3, 4))
        torch.autograd.grad(model(torch.randn(4, 8)).sum(), list(model.parameters()))
    assert compare.summary.failed == 0 and compare.errors == 0


DISTRIBUTED = """
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from my_utils.compare_tool import CompareWithCPU, NanInfTracker, open_module_tracker
from my_utils.tensors import tensor_hash

def train(kind, tool):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))
    if kind == "ddp":
        model = DistributedDataParallel(model)
    else:
        for layer in (model[0], model[2]):
            fully_shard(layer)
        fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters())
    torch.manual_seed(rank)
    with open_module_tracker(model), tool:
        model(torch.randn(4, 8)).square().mean().backward()
        optimizer.step()
    return [tensor_hash(p.to_local() if hasattr(p, "to_local") else p) for p in model.parameters()]

for kind in ("ddp", "fsdp"):
    plain = train(kind, CompareWithCPU(enabled=False))
    tool = CompareWithCPU(verbose=False, should_log_to_file=True, output_dir=kind)
    assert train(kind, tool) == plain, kind
    assert tool.summary.failed == 0 and tool.errors == 0, tool.summary.table(None)
    ops = {(row.op, row.module.removeprefix("module.")) for row in tool.summary.rows if row.passed}
    assert ("torch.ops.aten.addmm", "2") in ops and ("torch.ops.aten.mm", "2") in ops, ops
    nan = NanInfTracker(should_log_to_file=True, output_dir=kind)
    assert train(kind, nan) == plain and not nan.errors, kind
    assert not nan.findings, (kind, nan.findings)
dist.barrier()
dist.destroy_process_group()
print("good", flush=True)
"""


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_ddp_and_fsdp2(tmp_path: Path) -> None:
    results = Ranks(DISTRIBUTED, 2, tmp_path).finish(timeout_s=200)
    assert [out for _, out, _ in results] == ["good\n"] * 2, results
    logs = sorted(path.name for path in (tmp_path / "fsdp").iterdir())
    assert logs == [
        *("CompareWithCPU_rank0.log", "CompareWithCPU_rank1.log"),
        *("NanInfTracker_rank0.log", "NanInfTracker_rank1.log"),
    ]


def test_compiled_with_a_back_end_that_runs_operators() -> None:
    torch._dynamo.reset()
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU())
    compiled = torch.compile(model, backend="aot_eager")
    x = torch.randn(4, 8)
    frames = torch._dynamo.utils.counters["frames"]
    frames.clear()
    with CompareWithCPU(verbose=False) as compare:
        compiled(x).sum().backward()
    assert compare.summary.failed == 0 and compare.errors == 0
    assert frames["ok"] == 1  # compiled, and not silently run eagerly
    ops = {row.op for row in compare.summary.rows if row.passed}
    assert {"torch.ops.aten.addmm", "torch.ops.aten.threshold_backward"} <= ops
    with Fault(aten.addmm, one_wrong_element), CompareWithCPU(verbose=False) as compare:
        compiled(x).sum().backward()
    assert [row.op for row in compare.summary.rows if row.failed] == ["torch.ops.aten.addmm"]
    with NanInfTracker() as tracker:
        compiled(x * float("nan"))
    assert tracker.first is not None and "aten.mul" in tracker.first.op


def test_compiled_with_another_back_end(caplog: pytest.LogCaptureFixture) -> None:
    def of_its_own(graph: Any, inputs: Any) -> Any:
        return graph.forward

    torch._dynamo.reset()
    _warnings.forget("op_mode_backend_of_its_own")
    with caplog.at_level(logging.WARNING), CompareWithCPU(verbose=False):
        torch.compile(lambda x: x + 1, backend=of_its_own)(torch.ones(2))
    assert "backend 'of_its_own' is in use" in caplog.text


def test_the_lines_of_code_of_a_backward_operator(capsys: pytest.CaptureFixture[str]) -> None:
    model = Net()

    def spoil(result: torch.Tensor) -> torch.Tensor:
        return result + 1

    fault = Fault(aten.threshold_backward, spoil)
    with open_module_tracker(model), fault, CompareWithCPU(verbose=False, stacks=True):
        model(torch.randn(4, 8)).sum().backward()
    block = capsys.readouterr().out.split("...... stack ........")[1]
    assert "y: torch.Tensor = self.out(self.act(self.fc(x)))" in block
    assert "model(torch.randn(4, 8)).sum().backward()" in block and "_operators" not in block
    with NanInfTracker(stacks=True):
        torch.tensor([-1.0]).log()
    assert "torch.tensor([-1.0]).log()" in capsys.readouterr().out
