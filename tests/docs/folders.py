"""What the commands of the pages work on: runs, recordings and scripts, as files of a folder."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path

from ..support.planted_runs import Run

Fill = Callable[[Path], object]

SCRIPT = """
import sys, time
from my_utils import GlobalLogger, MyTimer
from my_utils.memory_snapshot import global_snapshotter
GlobalLogger().setup("logs", console=False)
timer = MyTimer()
for step in range(120):
    timer.set_step(step)
    with timer.time_stage("iter"):
        time.sleep(0.002)
    timer.step()
"""

TRAINING = """
import torch
model = torch.nn.Linear(16, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(120):
    model(torch.ones(4, 16)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def planted(folder: Path) -> None:
    """A run of eight ranks, one of which waits for its data."""
    Run(ranks=8).slower(6, "data", rank=1).write(folder / "logs")


def planted_in_train(folder: Path) -> None:
    (folder / "logs").mkdir()
    Run(ranks=8).slower(6, "data", rank=1).write(folder / "logs" / "train")


def script(folder: Path) -> None:
    (folder / "train.py").write_text(SCRIPT, encoding="utf-8")


def training(folder: Path) -> None:
    (folder / "train.py").write_text(TRAINING, encoding="utf-8")


def profiled_tasks(folder: Path) -> None:
    text = "from my_utils.DITProfiler import create_profiler_context\n"
    (folder / "generate.py").write_text(text, encoding="utf-8")


def home(folder: Path) -> None:
    for name in (".local/share/bash-completion/completions", ".zfunc", ".config/fish/completions"):
        (folder / name).mkdir(parents=True)


def recordings(folder: Path) -> None:
    import torch

    from my_utils.module_hook import ForwardTraceRecorder

    model = torch.nn.Linear(4, 4)
    for name in ("good", "bad"):
        with ForwardTraceRecorder(model, record_outputs=True) as recorder:
            model(torch.ones(1, 4) * (1 if name == "good" else 2))
        recorder.save(folder / f"{name}.pt")


def passports(folder: Path) -> None:
    """A checkpoint of bfloat16, passports of its trainer and of an engine of two ranks, in which a
    row of k_proj is wrong, and those of four replicas, one of which drifts."""
    import torch
    from safetensors.torch import save_file

    from my_utils.tensors import passport
    from my_utils.tensors.passport import vllm_layout
    from my_utils.tensors.passport.file import write_passport

    torch.manual_seed(0)
    rows = {"q": 16, "k": 8, "v": 8}
    weights = {
        f"layers.0.{name}_proj.weight": torch.randn(count, 512).bfloat16()
        for name, count in rows.items()
    }
    weights["norm.weight"] = torch.ones(512).bfloat16()
    (folder / "checkpoint").mkdir()
    save_file(weights, folder / "checkpoint" / "model.safetensors")
    passport(weights).save(folder / "pp" / "trainer_rank{rank}.json")
    weights["layers.0.k_proj.weight"][5] *= 2
    config = {"num_attention_heads": 4, "num_key_value_heads": 2}
    for rank in range(2):
        shards = [value.chunk(2)[rank] for name, value in weights.items() if "proj" in name]
        engine = {"layers.0.qkv_proj.weight": torch.cat(shards), "norm.weight": torch.ones(512)}
        data = passport(engine, dtype="bfloat16", layout=vllm_layout(config, rank, 2)).data
        data.rank, data.world_size = rank, 2
        write_passport(data, folder / "pp" / f"engine_rank{rank}.json")
    for step in (50, 60):
        for rank in range(4):
            mine = {"layers.3.mlp.weight": torch.ones(64, 256)}
            mine["layers.3.mlp.weight"][41, rank] += (step, rank) == (60, 2)
            data = passport(mine, step=step).data
            data.rank, data.world_size = rank, 4
            write_passport(data, folder / "pp" / "history" / f"trainer_step{step}_rank{rank}.json")


def sources(folder: Path) -> None:
    (folder / "mine" / "csrc").mkdir(parents=True)
    text = "#include <cuda_runtime.h>\nvoid f() { cudaDeviceSynchronize(); }\n"
    (folder / "mine" / "csrc" / "scale.cu").write_text(text, encoding="utf-8")
    (folder / "mine" / "train.py").write_text('device = "cuda"\n', encoding="utf-8")


def two_runs(folder: Path) -> None:
    (folder / "logs").mkdir()
    for seed, name in enumerate(("before", "after")):
        Run(ranks=2, seed=seed).write(folder / "logs" / name)
    for side in ("base", "new"):
        (folder / side).mkdir()
        for number in range(2):
            Run(ranks=2, seed=number).write(folder / side / str(number))


def for_assistants(folder: Path) -> None:
    """The run whose verdict the page shows, two runs to compare, and a training."""
    Run(ranks=2).write(folder / "before")
    Run(ranks=2, seed=1).write(folder / "after")
    Run(ranks=4).slower(6, "data", rank=1).write(folder / "logs")  # the newest
    training(folder)


def a_run_and_a_training(folder: Path) -> None:
    planted(folder)
    training(folder)


def interrupted(folder: Path) -> None:
    Run(ranks=2).write(folder / "LOG_DIR")


def foreign_traces(folder: Path) -> None:
    planted_in_train(folder)
    slices = [{"ph": "X", "name": "step", "pid": 1, "tid": 1, "ts": 1.75e15, "dur": 10.0}]
    text = json.dumps({"traceEvents": slices})
    (folder / "torch_trace.json").write_text(text, encoding="utf-8")
    with gzip.open(folder / "viztracer.json.gz", "wt", encoding="utf-8") as file:
        file.write(text)


def operations(folder: Path) -> None:
    import pandas

    from ..analysis.replay.test_read_nsys import database
    from ..analysis.replay.test_read_traces import device_trace, write_trace

    planted(folder)
    rows = [
        (rank, step, name, step * 40 + begin, step * 40 + end, 0)
        for step in range(20)
        for rank in range(2)
        for name, begin, end in (("work", 0, 10 + 10 * rank), ("all_reduce", 10 + 10 * rank, 22))
    ]
    columns = ["rank", "step", "name", "begin_ms", "end_ms", "lane"]
    pandas.DataFrame(rows, columns=columns).to_parquet(folder / "operations.parquet")
    (folder / "traces").mkdir()
    for rank in range(4):
        write_trace(folder / "traces", rank, device_trace(rank, 4, slow=2), 4)
        database(folder / f"rank{rank}.sqlite", slow=rank, ranges=True)


def one_trace(folder: Path) -> None:
    """Of one step, which is too few for a verdict."""
    slices = [
        {"ph": "X", "cat": category, "name": name, "pid": 1, "tid": 1, "ts": 1.75e15, "dur": 10.0}
        for category, name in (("user_annotation", "ProfilerStep#3"), ("kernel", "gemm"))
    ]
    text = json.dumps({"traceEvents": slices})
    for name in ("trace", "before", "after"):
        (folder / f"{name}.json").write_text(text, encoding="utf-8")


def kernels(folder: Path) -> None:
    from ..profilers.ncu.test_ncu_analyze import RAW

    for name in ("before", "after"):
        (folder / f"{name}.csv").write_text(RAW, encoding="utf-8")


def profiled(folder: Path) -> None:
    planted(folder)
    trace = folder / "profiler_output" / "iteration_9" / "rank0.pt.trace.json"
    trace.parent.mkdir(parents=True)
    slices = [{"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": 1.75e15,
               "dur": 10.0}]  # fmt: skip
    trace.write_text(json.dumps({"traceEvents": slices}), encoding="utf-8")


# By the page; `logs` is that of `planted` where a page is not here.
FOLDERS: dict[str, Fill] = {
    "docs/capture/capture-a-running-job.md": planted_in_train,
    "docs/command-line.md": home,
    "docs/cookbook.md": training,
    "docs/correctness/find-the-first-difference.md": recordings,
    "docs/correctness/weights-passport.md": passports,
    "docs/for-assistants.md": for_assistants,
    "docs/index.md": a_run_and_a_training,
    "docs/memory/where-does-the-memory-go.md": script,
    "docs/port/port-a-cuda-extension.md": sources,
    "docs/runs/diff.md": two_runs,
    "docs/runs/one-trace-of-a-gpu.md": one_trace,
    "docs/runs/verdict-by-replay.md": operations,
    "docs/runs/watch-a-running-job.md": planted_in_train,
    "docs/runs/what-survives-a-crash.md": interrupted,
    "docs/runs/why-does-my-job-hang.md": planted_in_train,
    "docs/time/nsight_compute_guidance.md": kernels,
    "docs/time/profile-a-piece-of-code.md": profiled_tasks,
    "docs/time/profile-a-trainer-run.md": profiled,
    "docs/time/read-ncu-csv.md": kernels,
    "docs/traces/traces.md": foreign_traces,
}
