"""Every `next:` command that a verdict can print runs, and ends well."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from my_utils.analysis.verdict.kinds import KINDS
from my_utils.analysis.verdict.next_steps import next_command

from ...support.ranks import ROOT

pytest.importorskip("my_utils.cli", reason="the commands are those of the console script")

TRAIN = """
import os, sys, time
from my_utils import GlobalLogger, MyTimer
import torch
torch.set_num_threads(1)
logger, forever = GlobalLogger(), sys.argv[1:] == ["forever"]
logger.setup("logs", rank=int(os.environ["RANK"]), world_size=2, console=False)
timer = MyTimer(tag="run")
step = 0
while forever or step < 30:
    timer.set_step(step)
    with timer.time_stage("forward"):
        torch.ones(32, 32) @ torch.ones(32, 32)
        time.sleep(0.002)
    timer.step()
    if step == 20:
        print("under way", flush=True)
    step += 1
logger.close()
"""
SCRIPT = """
import torch
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(25):
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
"""


def commands(running: bool) -> list[str]:
    """All that differ, whatever was found on whichever ranks at whichever step."""
    found = {
        next_command(
            kind,
            paths=["logs"],
            ranks=ranks,
            running=running,
            command=command,
            step=step,
            slow=slow,
        )
        for slow in (None, range(20, 24))
        for kind in KINDS
        for ranks in ((), (1,), (0, 1))
        for command in ((), (sys.executable, "train.py"))
        for step in (None, 12)
    }
    return sorted(found)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where a run of two ranks has been, and `my_utils` is a command."""
    folder = tmp_path_factory.mktemp("next")
    (folder / "run.py").write_text(TRAIN)
    (folder / "train.py").write_text(SCRIPT)
    tool = folder / "bin" / "my_utils"
    tool.parent.mkdir()
    tool.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m my_utils "$@"\n')
    tool.chmod(0o755)
    for process in start(folder):
        assert process.wait(timeout=100) == 0
    return folder


def environment(folder: Path) -> dict[str, str]:
    path = f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}"
    return {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}


def start(folder: Path, *arguments: str) -> list[subprocess.Popen[str]]:
    return [
        subprocess.Popen(
            [sys.executable, "run.py", *arguments],
            cwd=folder,
            env={**environment(folder), "RANK": str(rank)},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]


@pytest.fixture(scope="module")
def running(folder: Path) -> Iterator[None]:
    processes = start(folder, "forever")
    try:
        for process in processes:
            assert process.stdout is not None
            assert process.stdout.readline() == "under way\n"
        yield
    finally:
        for process in processes:
            process.kill()
            process.communicate()


def run(folder: Path, command: str) -> None:
    done = subprocess.run(
        command, shell=True, cwd=folder, env=environment(folder), capture_output=True, text=True,
        check=False, timeout=110,
    )  # fmt: skip
    assert done.returncode == 0, (command, done.stdout[-1500:], done.stderr[-1500:])
    if "--capture 0 " in command:  # the rank that the script has
        newest = (folder / "logs" / "latest").resolve()
        assert list(newest.glob("captures/**/*.json*")), sorted(newest.rglob("*"))


@pytest.mark.slow
@pytest.mark.parametrize("command", commands(running=False))
def test_a_command_for_a_run_that_has_ended(command: str, folder: Path) -> None:
    run(folder, command)


@pytest.mark.slow
@pytest.mark.parametrize("command", commands(running=True))
def test_a_command_for_a_run_that_goes_on(command: str, folder: Path, running: None) -> None:
    run(folder, command)
