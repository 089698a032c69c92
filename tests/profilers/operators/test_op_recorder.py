"""OpRecorder: two runs, operator by operator, and the first that differs."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="torch is not installed")

import torch
from torch import nn

from my_utils import __version__
from my_utils.compare_tool import OpRecorder, open_module_tracker
from my_utils.tensors import diverge, tensor_hash
from my_utils.tensors.recordings.recording import load_recording

from ...support.op_faults import Fault, one_wrong_element

aten = torch.ops.aten


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))
        self.drop = nn.Dropout(0.2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = self.drop(layer(x).relu())
        return x


def record(path: Path, fault: Any = None, **given: Any) -> OpRecorder:
    torch.manual_seed(0)
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters())
    recorder = OpRecorder(**given)
    with open_module_tracker(model), fault or torch.enable_grad(), recorder:
        for _ in range(2):
            model(torch.ones(3, 4)).square().sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            recorder.step()
    assert recorder.errors == 0
    recorder.save(path)
    return recorder


def test_digests_are_of_the_values_before_and_after() -> None:
    x = torch.ones(3)
    before = tensor_hash(x).content
    with OpRecorder() as recorder:
        x.add_(1)
    event = recorder.events[0]
    assert event.inputs[0].hash == before
    assert event.outputs[0].hash == tensor_hash(x).content and len(event.outputs) == 1


def test_two_runs_that_are_the_same(tmp_path: Path) -> None:
    record(tmp_path / "a.pt")
    record(tmp_path / "b.pt")
    report = diverge.compare_files(tmp_path / "a.pt", tmp_path / "b.pt")
    assert report.status == "same" and report.reason == ""
    assert len(report.ranks[0].checks) > 100


@pytest.mark.parametrize(
    ("op", "nth", "name"),
    [
        (aten.addmm, 1, "layers.1/aten.addmm"),
        (aten.mm, 2, "layers.1/aten.mm(backward)"),
        (aten.bernoulli_, 2, "drop/aten.bernoulli_"),
        (aten.addcdiv_, 3, "aten.addcdiv_"),
    ],
)
def test_the_first_operator_that_differs_is_named(
    tmp_path: Path, op: Any, nth: int, name: str
) -> None:
    record(tmp_path / "a.pt")

    def spoil(result: torch.Tensor) -> torch.Tensor:
        return result.copy_(one_wrong_element(result))

    record(tmp_path / "b.pt", Fault(op, spoil, nth))
    report = diverge.compare_files(tmp_path / "a.pt", tmp_path / "b.pt")
    assert report.status == "different" and report.first is not None
    found = report.first.difference
    assert found is not None and found.call is not None
    assert (found.call.name, found.cause) == (name, diverge.Cause.RESULT)


def test_statistics_only(tmp_path: Path) -> None:
    given: Any = {"hash": "none", "stats": True}
    recorder = record(tmp_path / "a.pt", **given)
    outputs = recorder.events[0].outputs
    assert outputs[0].hash is None and outputs[0].stats is not None
    record(tmp_path / "b.pt", Fault(aten.addmm, one_wrong_element), **given)
    report = diverge.compare_files(tmp_path / "a.pt", tmp_path / "b.pt", rtol=1e-6)
    assert report.first is not None and report.first.difference is not None
    call = report.first.difference.call
    assert call is not None and call.name == "layers.0/aten.addmm"


def test_lines_with_digests(tmp_path: Path) -> None:
    folder = tmp_path / "log"
    with OpRecorder(verbose=True, should_log_to_file=True, output_dir=folder):
        result = torch.ones(2).add(1)
    digest = tensor_hash(result).content
    text = (folder / "OpRecorder.log").read_text()
    assert f"torch.ops.aten.add(forward) {digest}\n" in text


def test_the_file_says_who_recorded_it_with_what(tmp_path: Path) -> None:
    record(tmp_path / "run.pt", name="mine")
    found = load_recording(tmp_path / "run.pt")
    assert (found.name, found.rank, found.world_size, found.pid) == ("mine", 0, 1, os.getpid())
    assert (found.torch, found.my_utils) == (torch.__version__, __version__)
    assert 0 <= time.time() - found.created_unix < 600


def test_bounds_and_arguments() -> None:
    with OpRecorder(max_events=2, record_inputs=False, target_list=["add"]) as recorder:
        for _ in range(4):
            torch.ones(2).add(1)
    assert [event.call for event in recorder.events] == [0, 1]
    assert recorder.events[0].inputs == []
    recorder.clear()
    assert recorder.snapshot().events == []
    with pytest.raises(ValueError, match="hash"):
        OpRecorder(hash="crc")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="max_events"):
        OpRecorder(max_events=0)
    for given in ({"name": 5}, {"stats": "no"}, {"record_inputs": "no"}):
        with pytest.raises(TypeError, match=next(iter(given))):
            OpRecorder(**given)


def test_scratch_of_a_kernel_is_not_recorded(tmp_path: Path) -> None:
    for name in ("a.pt", "b.pt"):
        torch.manual_seed(0)
        model = nn.LSTM(4, 8)
        with OpRecorder() as recorder:
            model(torch.ones(5, 2, 4))[0].sum().backward()
        recorder.save(tmp_path / name)
        taken = [torch.full((1000,), float(len(name)) + torch.rand(()).item()) for _ in range(50)]
        del taken  # what was in the memory that kernels get next is another thing
    report = diverge.compare_files(tmp_path / "a.pt", tmp_path / "b.pt")
    assert report.status == "same"
    kernels = [event for event in recorder.events if "mkldnn_rnn_layer" in event.type]
    if not kernels:
        pytest.skip("this build of torch has no such kernel for an LSTM")
    assert {meta.path for meta in kernels[0].outputs} == {"0", "1", "2"}
