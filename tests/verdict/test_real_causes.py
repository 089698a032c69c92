"""Hiccups whose cause is made for real, in a training of one rank that `my_utils run` records.

On a machine that is busy with others, every hiccup is a wait for a core.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ..support.ranks import ROOT

pytestmark = [pytest.mark.thorough, pytest.mark.timeout(300)]

# 60 iterations of some 12 ms, every tenth with a hiccup of 60 ms and more.
SCRIPT = """
import gc, os, signal, sys, time
import torch

torch.set_num_threads(1)
gc.disable()
cause = sys.argv[1]
core = min(os.sched_getaffinity(0))

def work(seconds):
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass

def hog():
    process = os.fork()
    if process == 0:
        os.sched_setaffinity(0, [core])
        while os.getppid() != 1:
            work(0.1)
        os._exit(0)
    os.kill(process, signal.SIGSTOP)
    return process

# How much of a core the process has in each tenth of a second.
def limit(quota_us):
    with open(f"{sys.argv[2]}/cpu.cfs_quota_us", "w") as file:
        file.write(str(quota_us))

if cause == "quota":
    with open(f"{sys.argv[2]}/cgroup.procs", "w") as file:
        file.write(str(os.getpid()))
hogs = [hog() for _ in range(8)] if cause == "delay" else []
if hogs:
    os.sched_setaffinity(0, [core])
kept = [[number] for number in range(2_000_000)] if cause == "gc2" else []
net = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
try:
    for number in range(60):
        is_hiccup = number % 10 == 9
        for process in hogs if is_hiccup else []:
            os.kill(process, signal.SIGCONT)
        net(torch.randn(4, 8)).sum().backward()
        work(0.01)
        if is_hiccup and cause == "gc2":
            gc.collect()
        if is_hiccup and cause == "quota":
            limit(10_000)
            work(0.03)
            limit(-1)
        if is_hiccup and cause == "own":
            work(0.1)
        if is_hiccup and cause == "wait":
            time.sleep(0.1)
        if is_hiccup and cause == "stopped":
            os.system(f"(sleep 0.1; kill -CONT {os.getpid()}) & kill -STOP {os.getpid()}")
        optimizer.step()
        for process in hogs if is_hiccup else []:
            os.kill(process, signal.SIGSTOP)
finally:
    for process in hogs:
        os.kill(process, signal.SIGKILL)
"""

CGROUPS = Path("/sys/fs/cgroup/cpu")  # of version 1
NAMED = {
    "gc2": "gc2", "delay": "delay", "quota": "quota", "own": "own", "wait": "wait",
    "stopped": "wait",
}  # fmt: skip


@pytest.fixture
def cgroup() -> Iterator[Path]:
    """A cgroup of this test's own."""
    if os.geteuid() != 0 or not (CGROUPS / "cpu.cfs_quota_us").is_file():
        pytest.skip("needs root, and the cpu controller of cgroups of version 1")
    folder = CGROUPS / f"my_utils_test_{os.getpid()}"
    folder.mkdir()
    yield folder
    folder.rmdir()


def causes_of(cause: str, folder: Path, *arguments: str) -> dict[str, float]:
    """The parts that the verdict lists."""
    (folder / "train.py").write_text(SCRIPT)
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    run = [
        sys.executable,
        "-m",
        "my_utils",
        "run",
        "--quiet",
        "-o",
        "logs",
        "train.py",
        cause,
        *arguments,
    ]
    subprocess.run(run, cwd=folder, env=env, check=True, timeout=200)
    why = [sys.executable, "-m", "my_utils", "why", "logs", "--json"]
    done = subprocess.run(why, cwd=folder, env=env, capture_output=True, text=True, check=False)
    found = [one for one in json.loads(done.stdout)["findings"] if "causes" in one["detail"]]
    assert len(found) == 1, done.stdout
    assert found[0]["ranks"] == [0]
    return dict(found[0]["detail"]["causes"])


@pytest.mark.parametrize("cause", NAMED)
def test_the_cause_of_hiccups(cause: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    arguments = [str(request.getfixturevalue("cgroup"))] if cause == "quota" else []
    parts = causes_of(cause, tmp_path, *arguments)
    # On a machine that others use as well, waiting for a core may be a part of every hiccup.
    assert NAMED[cause] in parts
    alone = {name: share for name, share in parts.items() if name != "delay"}
    assert NAMED[cause] == "delay" or max(alone, key=lambda name: alone[name]) == NAMED[cause]
