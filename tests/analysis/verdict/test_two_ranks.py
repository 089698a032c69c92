"""Real runs of two ranks whose truth is known, and which the verdict once got wrong."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ...conftest import RunPython
from ...support.schemas import loads_checked

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

TRAINING = """
import sys, time
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset

how = sys.argv[1]
dist.init_process_group("gloo")
rank = dist.get_rank()

class Rows(Dataset):
    def __len__(self):
        return 120
    def __getitem__(self, index):
        if how == "loader":
            time.sleep(0.053 if rank == 1 else 0.0004)
        return torch.ones(3 if how != "loader" and index % 2 == rank else 1, 16)

class SleepsBackwards(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()
    @staticmethod
    def backward(ctx, gradient):
        time.sleep(0.01 * len(gradient) * (how == "batches, backward"))
        return gradient

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = torch.nn.Linear(16, 16), torch.nn.Linear(16, 1)
    def forward(self, x):
        if how == "batches, forward":
            time.sleep(0.01 * len(x))
        return self.b(SleepsBackwards.apply(self.a(x)))

model = torch.nn.parallel.DistributedDataParallel(Model())
optimizer = torch.optim.SGD(model.parameters(), 1e-3)
for batch in DataLoader(Rows(), batch_size=None):
    model(batch).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
dist.destroy_process_group()
"""
BUSY = "while True: pass"


@pytest.fixture
def busy_cores() -> Iterator[None]:
    """Two processes that compute meanwhile."""
    processes = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(2)]
    yield
    for one in processes:
        one.kill()
        one.wait()


def verdict_of(how: str, run_python: RunPython, folder: Path) -> dict[str, Any]:
    (folder / "train.py").write_text(TRAINING)
    ran = run_python(
        "-m", "my_utils", "run", "-o", "logs", "-m", "torch.distributed.run", "--standalone",
        "--nproc-per-node", "2", "train.py", how, env={"OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr[-3000:]
    verdict: dict[str, Any] = loads_checked(
        "why", run_python("-m", "my_utils", "why", "logs", "--json").stdout
    )
    return verdict


@pytest.mark.thorough
def test_batches_that_are_larger_on_one_rank_after_the_other(
    run_python: RunPython, tmp_path: Path
) -> None:
    verdict = verdict_of("batches, forward", run_python, tmp_path)
    first = verdict["findings"][0]
    assert first["kind"] == "moving imbalance", verdict["text"]
    assert first["detail"]["by"] == "samples"
    assert first["saves_ns_a_step"] == pytest.approx(10e6, rel=0.35), verdict["text"]


@pytest.mark.thorough
def test_who_comes_last_by_turns_inside_backward_is_not_named(
    run_python: RunPython, tmp_path: Path
) -> None:
    """Every fourth step was looked at, in all of which the same rank was last."""
    verdict = verdict_of("batches, backward", run_python, tmp_path)
    named = [one for one in verdict["findings"] if one["ranks"] in ([0], [1])]
    assert not [one for one in named if one["share"] > 0.2], verdict["text"]
    assert not any("comes last" in line for line in verdict["text"]), verdict["text"]


@pytest.mark.thorough
@pytest.mark.usefixtures("busy_cores")
def test_a_slow_loader_on_busy_cores_is_input(run_python: RunPython, tmp_path: Path) -> None:
    verdict = verdict_of("loader", run_python, tmp_path)
    (found,) = [one for one in verdict["findings"] if one["kind"] == "input"]
    assert (found["ranks"], found["stage"]) == ([1], "input"), verdict["text"]
