"""Every `next:` command that a verdict can print runs, and ends well."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from my_utils.analysis.verdict.kinds import KINDS
from my_utils.analysis.verdict.next_steps import Captured, next_command
from my_utils.analysis.why import judge, load_run

from ...support.ranks import ROOT
from ...support.run_csv import RankCsv

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
PAUSES = """
import time
import torch
torch.set_num_threads(1)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(70):
    time.sleep(0.02)
    if step % 10 == 4:
        with torch.profiler.record_function("pause"):
            time.sleep(0.5)
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
        for slow in (None, Captured(20, 4), Captured(10, 3, 5, 2), Captured(10, 3, 7))
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
    make_tool(folder)
    for process in start(folder):
        assert process.wait(timeout=100) == 0
    return folder


def make_tool(folder: Path) -> None:
    tool = folder / "bin" / "my_utils"
    tool.parent.mkdir()
    tool.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m my_utils "$@"\n')
    tool.chmod(0o755)


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


def trains_again(command: str) -> bool:
    return "my_utils run" in command


@pytest.mark.slow
@pytest.mark.parametrize(
    "command",
    [
        pytest.param(one, marks=pytest.mark.thorough) if trains_again(one) else one
        for one in commands(running=False)
    ],
)
def test_a_command_for_a_run_that_has_ended(command: str, folder: Path) -> None:
    run(folder, command)


def pauses_recorded(folder: Path) -> Path:
    """What `my_utils run` writes of such pauses on a machine that does nothing else: the time after
    a step's last stage is the step's."""
    one = RankCsv(0, 1)
    one.process()
    one.note("run", {"device": "cpu", "attempt": 1, "wrappers": "none"})
    at_ms = 0.0
    for step in range(70):
        one.step(step, at_ms, [("forward", 0.0, 21.0), ("backward", 21.0, 22.0)])
        one.step(step, at_ms, [("optimizer", 22.0, 23.0)])
        at_ms += 523.0 if step % 10 == 3 else 23.0
    return one.write(folder / "recorded")


@pytest.mark.slow
def test_the_command_for_regular_pauses_captures_pauses_alone(tmp_path: Path) -> None:
    """The script runs again as the verdict says: a trace for each of two slow steps."""
    make_tool(tmp_path)
    (tmp_path / "pauses.py").write_text(PAUSES)
    recorded = load_run(pauses_recorded(tmp_path))
    recorded.command = [sys.executable, "pauses.py"]
    verdict = judge(recorded)
    command = verdict.next_step()
    assert any("every 10 steps" in line for line in verdict.lines()) and command is not None
    assert command.startswith("my_utils run --capture 0 "), command
    again = command.replace("my_utils run ", "my_utils run -o again ", 1)
    subprocess.run(again, shell=True, cwd=tmp_path, env=environment(tmp_path), check=True)
    traces = sorted((tmp_path / "again" / "captures").glob("*__rank0.json"))
    names = [
        [
            event["name"]
            for event in json.loads(trace.read_text())["traceEvents"]
            if event["ph"] == "X"
        ]
        for trace in traces
    ]
    assert [one.count("pause") for one in names] == [1, 1], traces
    steps = [sum(name.startswith("Optimizer.step") for name in one) for one in names]
    assert steps == [3, 3], traces


@pytest.mark.thorough
@pytest.mark.parametrize("command", commands(running=True))
def test_a_command_for_a_run_that_goes_on(command: str, folder: Path, running: None) -> None:
    run(folder, command)
