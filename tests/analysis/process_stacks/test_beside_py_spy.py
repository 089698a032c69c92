"""A sampled profile beside that of py-spy, of the same process at the same time, and beside the
truth that the process itself measures."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import pytest

from my_utils.analysis.process_stacks.record import StackRecord
from my_utils.analysis.process_stacks.request import request_stacks, wait_for_stacks

from ...conftest import ROOT
from ...support.no_gil import needs_stacks

POINTS = 3.0
SECONDS = 12
HZ = 100
FUNCTIONS = ("decode", "resize", "load", "fetch", "waits")
PARTS = {"decode", "load", "fetch"}  # of which one is always on

# Half of each turn in `decode`, three tenths in `resize`, which `load` calls, a fifth in a
# generator. A turn takes no multiple of the time between two samples. The work sleeps now and
# then, so that others on the same core stretch no part of it: both tools then see the same mix.
MIX = """
import ctypes, json, signal, sys, time
ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # die with the parent
from my_utils import GlobalLogger, MyTimer
GlobalLogger().setup(sys.argv[1], rank=0, world_size=1, console=False)
timer = MyTimer(tag="train")
def work(end):
    while time.perf_counter() < end:
        sum(range(2000))
        time.sleep(0.001)
def decode(end):
    work(end)
def resize(end):
    work(end)
def load(end):
    resize(end)
def waits(end):
    time.sleep(max(0.0, end - time.perf_counter()))
def fetch(end):
    yield waits(end)
def turn():
    for name, function, share in PARTS:
        began = time.perf_counter()
        found = function(began + share * 0.0973)
        if found is not None:
            list(found)
        spent[name] += time.perf_counter() - began
PARTS = (("decode", decode, 0.5), ("load", load, 0.3), ("fetch", fetch, 0.2))
spent = dict.fromkeys(("decode", "load", "fetch"), 0.0)
print("ready", flush=True)
step = 0
while True:
    timer.set_step(step)
    with timer.time_stage("mix"):
        turn()
    step += 1
    print(json.dumps([time.time_ns(), spent]), flush=True)
"""


def py_spy() -> str:
    path = shutil.which("py-spy") or shutil.which("py-spy", path=sysconfig.get_path("scripts"))
    if path is None:
        pytest.skip("py-spy is not installed (pip install py-spy)")
    return path


def shares(stacks: Iterable[tuple[set[str], int]]) -> dict[str, float]:
    """Of the samples in the mix, in percent."""
    counts: Counter[str] = Counter()
    for names, count in stacks:
        if names & PARTS:
            counts.update(dict.fromkeys(names, count))
            counts[""] += count
    assert counts[""] > SECONDS * HZ / 4
    return {name: 100 * counts[name] / counts[""] for name in FUNCTIONS}


def by_py_spy(path: Path) -> dict[str, float]:
    """Of the lines "outer (file:line);inner (file:line) count"."""
    lines = (line.rpartition(" ") for line in path.read_text().splitlines())
    return shares(
        ({re.sub(r" \(.*", "", frame) for frame in stack.split(";")}, int(count))
        for stack, _, count in lines
    )


def by_us(record: StackRecord) -> dict[str, float]:
    return shares(
        ({frame.function for frame in record.stack(stack)}, 1)
        for _, tid, stack, _ in record.samples
        if tid == record.pid
    )


def spent_in(record: StackRecord, out: str) -> dict[str, float]:
    """What the process measured between our first sample and our last one."""
    first, last = record.samples[0][0], record.samples[-1][0]
    turns = [json.loads(line) for line in out.splitlines() if line.endswith("]")]
    within = [spent for time_ns, spent in turns if first <= time_ns <= last]
    took = {name: within[-1][name] - within[0][name] for name in within[0]}
    return {name: 100 * one / sum(took.values()) for name, one in took.items()}


def rounded(figures: dict[str, float]) -> dict[str, float]:
    return {name: round(figure, 1) for name, figure in figures.items()}


@needs_stacks
@pytest.mark.slow
def test_it_lies_within_three_points_of_py_spy(tmp_path: Path) -> None:
    command = [py_spy(), "record", "--format", "raw", "--idle", "--rate", str(HZ),
               "--duration", str(SECONDS), "--output", str(tmp_path / "spy.txt")]  # fmt: skip
    mix = subprocess.Popen(
        [sys.executable, "-c", MIX, str(tmp_path / "logs")],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert mix.stdout is not None and mix.stdout.readline() == "ready\n"
        spy = subprocess.Popen([*command, "--pid", str(mix.pid)], stderr=subprocess.PIPE, text=True)
        id = request_stacks(tmp_path / "logs", seconds=SECONDS, hz=HZ)
        found = wait_for_stacks(tmp_path / "logs", id, timeout_s=120)
        _, said = spy.communicate(timeout=120)
    finally:
        mix.kill()
        out, _ = mix.communicate()
    if spy.returncode != 0:
        pytest.skip(f"py-spy is not allowed to read here: {said.strip()[-300:]}")
    assert found.missing == {}
    [record] = found.records
    theirs, ours = by_py_spy(tmp_path / "spy.txt"), by_us(record)
    truth = spent_in(record, out)
    print(f"ours {rounded(ours)}, py-spy's {rounded(theirs)}, measured {rounded(truth)}")
    for name in FUNCTIONS:
        assert abs(ours[name] - theirs[name]) <= POINTS, (name, ours, theirs)
    for name, share in truth.items():
        assert abs(ours[name] - share) <= 2 * POINTS, (name, ours, truth)  # both could be wrong
