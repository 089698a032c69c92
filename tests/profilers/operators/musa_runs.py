"""Uses the comparison tools on the device "musa:0" and prints as JSON what they said.

python -m tests.profilers.operators.musa_runs FOLDER
"""

from __future__ import annotations

import contextlib
import io
import json
import sys
from pathlib import Path
from typing import Any

import torch

from my_utils import tensors
from my_utils.compare_tool import (
    CompareError,
    CompareWithCPU,
    NanInfError,
    NanInfTracker,
    compare_for_single_op,
    nan_inf_track_for_single_op,
    open_module_tracker,
)
from my_utils.module_hook import ForwardTraceRecorder
from tests.support import musa_backend

GELU = torch.ops.aten.gelu


def small_model() -> torch.nn.Sequential:
    torch.manual_seed(0)
    layers = (torch.nn.Linear(4, 8), torch.nn.GELU(), torch.nn.Dropout(0.1))
    return torch.nn.Sequential(*layers, torch.nn.LayerNorm(8), torch.nn.Linear(8, 2)).to("musa")


def train_step(model: torch.nn.Module) -> None:
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.randn(5, 4, device="musa")).square().mean().backward()
    optimizer.step()


def counts_of(tool: CompareWithCPU) -> dict[str, Any]:
    found = tool.summary
    failing = sorted({(row.op, row.module) for row in found.rows if row.failed})
    return {"passed": found.passed, "failed": found.failed, "errors": tool.errors, "at": failing}


def tensors_there() -> dict[str, Any]:
    here = torch.arange(12.0).reshape(3, 4).t()
    there = here.to("musa")
    return {
        "hash": tensors.tensor_hash(there).content == tensors.tensor_hash(here).content,
        "md5": tensors.md5(there) == tensors.md5(here),
        "stats": tensors.stats(there).max,
        "compare": tensors.compare(there, here).equal_bits,
        "nans": tensors.nan_inf_count(there.log()).neg_inf,
    }


def one_operator() -> dict[str, Any]:
    with CompareWithCPU(verbose=False) as compare:
        torch.ones(3, device="musa:0").exp()
    return counts_of(compare)


def training() -> dict[str, Any]:
    with CompareWithCPU(verbose=False) as compare:
        train_step(small_model())
    return counts_of(compare)


def wrong_gelu(reference: Any) -> dict[str, Any]:
    model = small_model()
    open_module_tracker(model)
    torch.ops.small_musa.set_gelu_factor(1.01)
    with CompareWithCPU(verbose=False, reference=reference) as compare:
        train_step(model)
    torch.ops.small_musa.set_gelu_factor(1.0)
    return counts_of(compare)


def of_the_device() -> dict[str, Any]:
    """The CPU in doubt, and the device as the reference; its gelu is the wrong one."""
    torch.ops.small_musa.set_gelu_factor(1.01)
    with CompareWithCPU(verbose=False, reference="musa:0") as compare:
        torch.nn.functional.gelu(torch.randn(8)).add(1)
    torch.ops.small_musa.set_gelu_factor(1.0)
    return counts_of(compare)


def by_function(func: Any, args: Any, kwargs: Any) -> Any:
    return func(*args, **kwargs) if func is not GELU.default else args[0] * 2


def dumped(folder: Path) -> dict[str, Any]:
    model = small_model()
    torch.ops.small_musa.set_gelu_factor(1.01)
    try:
        with CompareWithCPU(verbose=False, dump_error_data=True, output_dir=folder):
            train_step(model)
    except CompareError as error:
        files = sorted(path.name for path in error.files)
    inputs = folder / "torch.ops.aten.gelu_inputs.pkl"
    wrong, args, _, out = compare_for_single_op(inputs, GELU)
    torch.ops.small_musa.set_gelu_factor(1.0)
    right = compare_for_single_op(inputs, GELU)[0]
    devices = [str(args[0].device), str(out.device)]
    return {"files": files, "wrong": wrong, "right": right, "on": devices}


def nan_tracker(sync: Any) -> dict[str, Any]:
    x = torch.tensor([1.0, 0.0], device="musa")
    with NanInfTracker(sync=sync) as tracker:
        (x / x).sum()
    first = tracker.first
    assert first is not None
    return {"first": [first.op, first.role, first.nan], "errors": tracker.errors}


def nan_of_single_op(folder: Path) -> bool:
    x = torch.tensor([1.0, 0.0], device="musa")
    with contextlib.suppress(NanInfError), NanInfTracker(dump_error_data=True, output_dir=folder):
        x / x
    inputs = folder / "torch.ops.aten.div_inputs.pkl"
    return nan_inf_track_for_single_op(inputs, torch.ops.aten.div)[0]


def recorded() -> dict[str, Any]:
    model = small_model().eval()
    runs = []
    for device in ("musa", "cpu"):
        model.to(device)
        with ForwardTraceRecorder(model, record_param_md5=True, stats=True) as recorder:
            model(torch.ones(2, 4, device=device))
        runs.append([event.outputs[0].hash for event in recorder.events])
    return {"same": runs[0][1] == runs[1][1], "without": runs[0].count(None)}


def main(folder: Path) -> dict[str, Any]:
    musa_backend.load()
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        return {
            "tensors": tensors_there(),
            "one operator": one_operator(),
            "training": training(),
            "wrong gelu by cpu": wrong_gelu("cpu"),
            "wrong gelu by float64": wrong_gelu("float64"),
            "wrong gelu by function": wrong_gelu(by_function),
            "device as reference": of_the_device(),
            "dump": dumped(folder),
            "nan": nan_tracker("op"),
            "nan later": nan_tracker("step"),
            "nan of one": nan_of_single_op(folder),
            "recorded": recorded(),
        }


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]))))
