"""How a run ended stands first in its verdict."""

from __future__ import annotations

from pathlib import Path

import pytest

from ...conftest import RunPython

SCRIPT = """
import os, signal, sys, time
import torch
import torch.distributed as dist

how, who = sys.argv[1:]
rank = int(os.environ.get("RANK", 0))
model = torch.nn.Linear(8, 8)
if "RANK" in os.environ:
    dist.init_process_group("gloo")
    model = torch.nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for step in range(60):
    time.sleep(0.004)
    model(torch.ones(2, 8)).sum().backward()
    optimizer.step()
    if step == 40 and rank == int(who):
        if how == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if how == "raise":
            raise ValueError("no")
        if how == "exit":
            sys.exit(7)
"""
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "3")

pytestmark = pytest.mark.slow


def first_words(run_python: RunPython, folder: Path, how: str, *launcher: str) -> str:
    (folder / "train.py").write_text(SCRIPT)
    who = "2" if launcher else "0"
    command = [*launcher, "train.py", how, who]
    run_python("-m", "my_utils", "run", "--quiet", "-o", "logs", *command)
    return " ".join(run_python("-m", "my_utils", "why", "logs").stdout.split())


@pytest.mark.parametrize(
    ("how", "words"),
    [
        pytest.param(
            "kill",
            "killed or crashed on rank 0 in step 40; the command ended by SIGKILL",
            marks=pytest.mark.thorough,
        ),
        (
            "raise",
            "ValueError on rank 0 in step 40; the command ended with exit status 1",
        ),
        pytest.param("exit", "the command ended with exit status 7", marks=pytest.mark.thorough),
        ("finish", ""),
    ],
)
def test_of_one_process(how: str, words: str, run_python: RunPython, tmp_path: Path) -> None:
    beginning = f"ENDED EARLY: {words}" if words else "BOUND BY"
    assert first_words(run_python, tmp_path, how).startswith(beginning)


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("kill", "killed by SIGKILL on rank 2 in step 40; "),
        pytest.param("raise", "ValueError on rank 2 in step 40; ", marks=pytest.mark.thorough),
        pytest.param("exit", "exit status 7 on rank 2 in step 40; ", marks=pytest.mark.thorough),
    ],
)
def test_the_rank_whose_end_ended_the_others(
    how: str, words: str, run_python: RunPython, tmp_path: Path
) -> None:
    text = first_words(run_python, tmp_path, how, *TORCHRUN)
    assert f"ENDED EARLY: {words}" in text  # the stages that were open then may come first
    assert "the command ended with exit status 1" in text
