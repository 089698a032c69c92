"""Hangs of real processes on gloo, each kind once, by the dumps that torch writes of them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from my_utils.analysis import live

from ...support.live_ranks import wait_until
from ...support.ranks import free_port

pytest.importorskip("torch")

pytestmark = pytest.mark.timeout(300)

START_S = 150.0
WAITED_S = 7.0

PROGRAM = """
import ctypes, os, sys, threading, time
ctypes.CDLL(None).prctl(1, 9)  # die with the parent
os.environ["TORCH_FR_BUFFER_SIZE"] = "2000"
import torch, torch.distributed as dist
from torch._C._distributed_c10d import _dump_fr_trace

fault, culprits, folder = sys.argv[1], set(map(int, sys.argv[2].split(","))), sys.argv[3]
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
is_odd = rank in culprits

def dump():
    while not os.path.exists(folder + "/now"):
        time.sleep(0.1)
    with open(f"{folder}/dump_{rank}.part", "wb") as file:
        file.write(_dump_fr_trace(True, False, False))
    os.rename(f"{folder}/dump_{rank}.part", f"{folder}/dump_{rank}")

threading.Thread(target=dump, daemon=True).start()
pairs = [[first, first + 1] for first in range(0, world - 1, 2)]
stripes = [list(range(place, world, 2)) for place in (0, 1)]
inner = [dist.new_group(ranks) for ranks in pairs][rank // 2]
outer = [dist.new_group(ranks) for ranks in stripes][rank % 2]

def call(group, size):
    dist.all_reduce(torch.ones(size), group=group)

def step(is_odd):
    if is_odd and fault == "lock":
        ctypes.PyDLL(None).sleep(1000)
    if is_odd and fault == "loader":
        lock = threading.Lock(); lock.acquire(); lock.acquire()
    if is_odd and fault == "dead":
        os._exit(1)
    if is_odd and fault in ("late", "two"):
        time.sleep(1000)
    if is_odd and fault == "swap":
        call(None, 1); call(inner, 8); call(inner, 8); call(outer, 9)
    elif is_odd and fault == "shape":
        dist.all_gather([torch.ones(4)] * 2, torch.ones(4), group=inner)
    elif is_odd and fault == "raised":
        try:
            call(inner, 8)
            raise RuntimeError("in one rank only")
        except RuntimeError:
            time.sleep(1000)
    else:
        call(inner, 8)
        if not (is_odd and fault == "skip"):
            call(inner, 8)
        call(outer, 9)
    call(None, 1)

for number in range(4):
    step(False)
open(f"{folder}/at_{rank}", "w").close()
if fault == "moment" and is_odd:
    time.sleep(1)
try:
    step(is_odd)
    while fault == "moment":
        step(False)
except RuntimeError:  # a connection that the other side has closed
    pass
time.sleep(1000)
"""


def causes_of(folder: Path, fault: str, culprits: list[int], world: int) -> list[dict[str, Any]]:
    """Of a run that is dumped once it has stood still for so long."""
    port = str(free_port())
    names = ",".join(map(str, culprits))
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", PROGRAM, fault, names, str(folder)],
            env={
                **os.environ, "RANK": str(rank), "WORLD_SIZE": str(world), "OMP_NUM_THREADS": "1",
                "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port,
            },
            stderr=subprocess.DEVNULL,
        )
        for rank in range(world)
    ]  # fmt: skip
    silent = set(culprits) if fault in ("lock", "dead") else set()
    try:
        wait_until(lambda: len(list(folder.glob("at_*"))) == world, START_S)
        at = max(path.stat().st_mtime for path in folder.glob("at_*"))
        wait_until(lambda: time.time() > at + WAITED_S, START_S)
        (folder / "now").touch()
        expected = world - len(silent)
        wait_until(lambda: len(list(folder.glob("dump_*[0-9]"))) == expected, START_S)
    finally:
        for process in processes:
            process.send_signal(signal.SIGKILL)
            process.wait()
    logs = folder / "logs"
    logs.mkdir()
    found = live.snapshot(logs, flight_recorder=folder / "dump_")["flight_recorder"]
    return [dict(cause) for cause in found["causes"]]


def check(folder: Path, fault: str, culprits: list[int], world: int) -> None:
    causes = causes_of(folder, fault, culprits, world)
    named = {rank for cause in causes if cause["decided"] for rank in cause["ranks"]}
    assert named == set(culprits), causes


@pytest.mark.slow
def test_a_rank_that_is_late(tmp_path: Path) -> None:
    check(tmp_path, "late", [1], 2)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("fault", "culprits"),
    [
        ("late", [2]),
        ("lock", [1]),
        ("loader", [0]),
        ("skip", [3]),
        ("swap", [1]),
        ("raised", [2]),
        ("dead", [1]),
        ("two", [1, 2]),
    ],
)
def test_each_kind(fault: str, culprits: list[int], tmp_path: Path) -> None:
    check(tmp_path, fault, culprits, 4)


@pytest.mark.thorough
def test_another_call_in_a_pair_is_not_guessed(tmp_path: Path) -> None:
    """Which of two differs from the other says nobody, but groups that do the same may."""
    check(tmp_path, "shape", [1], 4)


@pytest.mark.thorough
def test_a_moment_is_no_hang(tmp_path: Path) -> None:
    assert causes_of(tmp_path, "moment", [1], 4) == []
