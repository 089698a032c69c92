"""What the pages take as given: the model, the data and the files that their blocks work on.

No module and no name of my_utils is among it, so that a block that lacks an import fails.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from ..conftest import ROOT
from ..support.planted_runs import Run

Names = dict[str, Any]


class Model(torch.nn.Module):
    """Returns its loss."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(16, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        loss: torch.Tensor = self.layer(x).square().mean()
        return loss


def training() -> Names:
    """What every page has: a loop without my_utils."""
    torch.manual_seed(0)
    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loader = [torch.randn(4, 16) for _ in range(12)]

    def train_step(*arguments: Any) -> None:
        optimizer.zero_grad()
        model(arguments[-1]).backward()
        optimizer.step()

    return {
        "model": model, "optimizer": optimizer, "loader": loader, "batches": loader,
        "batch": loader[0], "train_step": train_step, "rank": 0, "world_size": 1, "step": 0,
        "logger": logging.getLogger("training"),
    }  # fmt: skip


PAGES: dict[str, Callable[[], Names]] = {}


def setup_of(*pages: str) -> Callable[[Callable[[], Names]], Callable[[], Names]]:
    def add(setup: Callable[[], Names]) -> Callable[[], Names]:
        PAGES.update(dict.fromkeys(pages, setup))
        return setup

    return add


def names_of(page: str) -> Names:
    return {**training(), **PAGES.get(page, dict)()}


def one_rank() -> None:
    """A process group of this process alone."""
    file = Path("store").resolve()
    torch.distributed.init_process_group("gloo", init_method=f"file://{file}", rank=0, world_size=1)


# --- capture ---

JOB = """
import ctypes, sys, time
ctypes.CDLL(None).prctl(1, 9)  # die with the parent
import torch
from my_utils import GlobalLogger, MyTimer
GlobalLogger().setup("logs/train", rank=int(sys.argv[1]), world_size=8, console=False)
timer = MyTimer()
step = 0
while True:
    timer.set_step(step)
    with timer.time_stage("iter"):
        time.sleep(0.01)
    timer.step()
    if step == 0:
        print("ready", flush=True)
    step += 1
"""
jobs: list[subprocess.Popen[bytes]] = []  # else they would be waited for


@setup_of("docs/capture/capture-a-running-job.md")
def a_job() -> Names:
    """Ranks 3 and 7 of it run meanwhile; they end with this process."""
    from my_utils.profiling.backends import NoOpBackend
    from my_utils.profiling.capture_controller import CaptureController

    one_rank()
    for rank in ("3", "7"):
        job = subprocess.Popen([sys.executable, "-c", JOB, rank], stdout=subprocess.PIPE)
        assert job.stdout is not None and job.stdout.readline()
        jobs.append(job)
    return {"controller": CaptureController(NoOpBackend())}


@setup_of("docs/capture/capture-windows-across-workers.md")
def workers() -> Names:
    from my_utils.profiling.capture_worker import CaptureWorker
    from my_utils.profiling.ProfileManager import ProfileManager

    page = (ROOT / "docs/capture/capture-windows-across-workers.md").read_text(encoding="utf-8")
    config, with_command = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
    Path("profile.yaml").write_text(config, encoding="utf-8")
    ProfileManager(with_command)
    group = [CaptureWorker() for _ in range(4)]
    return {"num_microbatches": 2, "rollout_workers": group[:2], "actor_workers": group}


# --- correctness ---


@setup_of("docs/correctness/check-data-between-processes.md")
def signed_data() -> Names:
    os.environ["DEBUG_DATA_CONSISTENCY"] = "1"
    from my_utils import ChecksumUtils

    data = {"input_ids": torch.arange(8).view(4, 2), "labels": torch.ones(4)}
    return {
        "ids": data["input_ids"], "pixels": torch.rand(4, 3, 2, 2), "labels": data["labels"],
        "batch": ChecksumUtils.sign(data),
        "model": lambda input_ids, labels, **_: (input_ids.float().mean(1) - labels).sum(),
    }  # fmt: skip


@setup_of("docs/correctness/compare-a-device-with-the-cpu.md")
def dumped_operator() -> Names:
    from my_utils.compare_tool import CompareWithCPU

    inputs = torch.randn(4), torch.randn(4, 3), torch.randn(3, 4)
    options: Names = {"dump_error_data": True, "output_dir": "dump", "verbose": False}
    with contextlib.suppress(RuntimeError), CompareWithCPU(reference=_wrong, **options):
        torch.addmm(*inputs)
    return {}


def _wrong(op: Any, args: Any, kwargs: Any) -> Any:
    return op(*args, **kwargs) + 1


@setup_of("docs/correctness/dump-and-reload.md")
def latent() -> Names:
    os.environ["WAN_DPO_PREVAE_TENSOR_DIR"] = "tensors"
    return {"latent": torch.randn(2, 4)}


@setup_of("docs/correctness/find-the-first-difference.md")
def a_bad_run() -> Names:
    from my_utils.module_hook import ForwardTraceRecorder

    model = Model()
    with ForwardTraceRecorder(model, record_outputs=True, stats=True) as recorder:
        model(torch.ones(4, 16))
    recorder.save("bad.pt")
    return {}


@setup_of("docs/correctness/measure-tensors.md")
def tensors() -> Names:
    weight = torch.randn(512, 512)
    gradient = torch.tensor([1.0, float("nan")])
    return {"weight": weight, "activation": weight, "gradient": gradient, "old": weight,
            "new": weight + 3e-5}  # fmt: skip


@setup_of("docs/correctness/same-random-numbers.md")
def drawn() -> Names:
    return {"replay": False, "noise": torch.randn(4), "sampler": np.random.default_rng(0)}


@setup_of("docs/correctness/tensor-hash.md")
def equal_tensors() -> Names:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import distribute_tensor

    one_rank()
    tensor = torch.randn(64, 128)
    dtensor = distribute_tensor(tensor, init_device_mesh("cpu", (1,)))
    names = {"tensor": tensor, "a": tensor, "b": tensor.clone(), "dtensor": dtensor}
    return {**names, "weight": tensor, "other": tensor + 1}


@setup_of("docs/correctness/weights-passport.md")
def engine() -> Names:
    from .folders import passports

    passports(Path.cwd())
    config = {"num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 10}
    model = torch.nn.ModuleDict({"qkv_proj": torch.nn.Linear(8, 16)})
    return {"config": config, "engine_model": model, "tp_rank": 0, "tp_size": 2}


@setup_of("docs/correctness/torch-operators.md")
def one_tensor() -> Names:
    return {"x": torch.randn(4, 8)}


# --- port ---


@setup_of("docs/port/port-a-cuda-extension.md")
def an_extension() -> Names:
    folder = Path("mine/csrc")
    folder.mkdir(parents=True)
    text = "#include <cuda_runtime.h>\nbool on(at::Tensor x) { return x.device().is_cuda(); }\n"
    (folder / "bind.cpp").write_text(text, encoding="utf-8")
    return {}


# --- runs ---


@setup_of("docs/runs/align-clocks.md")
def a_process_group() -> Names:
    one_rank()
    return {}


@setup_of("docs/cookbook.md")
def runs_of_auto() -> Names:
    Path("logs").mkdir()
    Run(ranks=2, steps=60).slower(6, "data", rank=1).write(Path("logs/auto-20260101-000000"))
    return {}


@setup_of("docs/runs/verdict.md")
def logs() -> Names:
    Run(ranks=2, steps=60).slower(6, "data", rank=1).write(Path("logs"))
    return {}


@setup_of("docs/runs/diff.md")
def two_runs() -> Names:
    Path("logs").mkdir()
    Run(ranks=2).write(Path("logs/before"))
    Run(ranks=2, seed=1).slower(2, "data").write(Path("logs/after"))
    return {}


@setup_of("docs/runs/verdict-by-replay.md")
def operations() -> Names:
    rows = ["rank,step,name,begin_ms,end_ms,group,sequence"]
    for step in range(20):
        begin = step * 40
        for rank in range(2):
            ready = begin + (20 if rank else 10)
            rows.append(f"{rank},{step},work,{begin},{ready},,")
            rows.append(f"{rank},{step},all_reduce,{ready},{begin + 22},0,{step}")
    Path("operations.csv").write_text("\n".join(rows) + "\n", encoding="utf-8")
    return {}


@setup_of("docs/runs/what-run-records.md", "docs/time/profile-a-trainer-run.md")
def trainer() -> Names:
    from transformers import GPT2Config, GPT2LMHeadModel, TrainingArguments

    config = GPT2Config(n_embd=16, n_layer=1, n_head=2, vocab_size=32, n_positions=8)
    arguments = TrainingArguments("out", max_steps=12, per_device_train_batch_size=2,
                                  use_cpu=True, report_to=[])  # fmt: skip
    ids = torch.arange(8)
    data = [{"input_ids": ids, "labels": ids}] * 24
    return {"model": GPT2LMHeadModel(config), "args": arguments, "data": data}


@setup_of("docs/runs/why-does-my-job-hang.md")
def a_running_job() -> Names:
    Path("logs").mkdir()
    Run(ranks=2, steps=10).write(Path("logs/train"))
    return {}


@setup_of("docs/runs/why-is-my-job-slow.md")
def a_long_run() -> Names:
    Run(ranks=4, steps=620).slower(3, "data", rank=2).write(Path("logs"))
    return {}


# --- time ---


@setup_of("docs/time/nvtx.md", "docs/time/scalars-to-tensorboard.md")
def a_timer() -> Names:
    from my_utils import MyTimer

    os.environ["WANDB_MODE"] = "offline"
    os.environ["OTEL_EXPORTER_OTLP_TIMEOUT"] = "1"  # seconds; nobody is there
    return {"timer": MyTimer(tag="train")}


@setup_of("docs/time/profile-a-piece-of-code.md")
def latents() -> Names:
    os.environ["PROFILE_TASK_TYPES"] = "DIT"
    return {"latents": torch.randn(8, 8), "run_dit": lambda x: x @ x}


@setup_of("docs/time/read-ncu-csv.md")
def measured_kernels() -> Names:
    from ..profilers.ncu.test_ncu_analyze import RAW_METRICS, raw_text

    cells = ["10", "60", "20", "15", "50", "32"]
    assert len(cells) == len(RAW_METRICS)
    rows = [("void gemm(float *)", cells)]
    for name in ("before", "after-0", "after-1"):
        Path(f"{name}.csv").write_text(raw_text(rows), encoding="utf-8")
    return {}


@setup_of("docs/time/reports.md")
def a_timer_with_times() -> Names:
    from my_utils import GlobalLogger, MyTimer

    GlobalLogger().setup("logs", console=False)
    timer = MyTimer(tag="train")
    for step in range(10):
        timer.set_step(step)
        with timer.time_stage("iter"):
            pass
        timer.step()
    return {"timer": timer}


@setup_of("docs/time/sweep-shapes.md")
def softmax() -> Names:
    return {"my_softmax": lambda x: torch.softmax(x, -1)}


@setup_of("docs/time/timer.md")
def fetched() -> Names:
    async def get() -> None:
        pass

    return {"get": get}


@setup_of("docs/time/torch-compile.md")
def attention() -> Names:
    return {"attention": torch.nn.functional.relu, "x": torch.randn(4, 8)}


@setup_of("docs/time/which-module-takes-the-time.md")
def a_model_with_outputs() -> Names:
    model = Model()
    model.register_forward_hook(lambda module, inputs, loss: SimpleNamespace(loss=loss))
    return {"model": model}
