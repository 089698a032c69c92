"""Whether a rank lives is told by its own progress, whatever the clocks of hosts, of the file
server and of the reader say."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from my_utils.analysis.live import snapshot

from ...conftest import ROOT
from ...support.clock_shim import clock_shim
from ...support.live_ranks import beat

HOUR_S = 3600.0


def write(folder: Path, host_ahead_s: float, server_ahead_s: float, number: int = 0) -> None:
    """A heartbeat of a rank that is in `iter` since a minute."""
    content = beat(0, 4, "iter")
    shift = time.time() + host_ahead_s - content["time"]
    content["time"] += shift
    content["lanes"][0]["open"][0]["since"] += shift
    content["dropped"] = number
    path = folder / "rank_0.heartbeat.json"
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps(content))
    moment = time.time() + server_ahead_s
    os.utime(temporary, (moment, moment))
    os.replace(temporary, path)


@contextmanager
def beating(folder: Path, host_ahead_s: float, server_ahead_s: float) -> Iterator[None]:
    ended = threading.Event()

    def beats() -> None:
        number = 0
        while not ended.wait(0.2):
            number += 1
            write(folder, host_ahead_s, server_ahead_s, number)

    write(folder, host_ahead_s, server_ahead_s)
    thread = threading.Thread(target=beats)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


CLOCKS = [
    (0.0, 0.0), (5 * HOUR_S, 0.0), (-5 * HOUR_S, 0.0), (-9000 * HOUR_S, 0.0), (0.0, -2 * HOUR_S),
    (0.0, 2 * HOUR_S), (-3 * HOUR_S, -3 * HOUR_S), (4 * HOUR_S, -0.5 * HOUR_S),
]  # fmt: skip


@pytest.mark.no_torch
@pytest.mark.parametrize(("host_ahead_s", "server_ahead_s"), CLOCKS)
def test_a_rank_that_beats_runs(host_ahead_s: float, server_ahead_s: float, tmp_path: Path) -> None:
    with beating(tmp_path, host_ahead_s, server_ahead_s):
        (rank,) = snapshot(tmp_path)["ranks"]
    assert rank["state"] == "running"
    assert rank["open_s"] is not None and 60 <= rank["open_s"] < 120


@pytest.mark.no_torch
@pytest.mark.parametrize(("host_ahead_s", "server_ahead_s"), CLOCKS[1:])
def test_a_rank_that_does_not_is_silent(
    host_ahead_s: float, server_ahead_s: float, tmp_path: Path
) -> None:
    write(tmp_path, host_ahead_s, server_ahead_s - 60.0)
    (rank,) = snapshot(tmp_path)["ranks"]
    assert rank["state"] == "silent"


PROGRAM = """
import ctypes, sys, time
from my_utils import GlobalLogger, MyTimer
set_clock = ctypes.CDLL(None).set_clock
set_clock.argtypes = [ctypes.c_longlong]
GlobalLogger().setup(sys.argv[1], rank=0, world_size=1, console=False)
timer = MyTimer()
timer.set_step(3)
timer.start("stuck")
set_clock(int(sys.argv[2]))
print("set", flush=True)
sys.stdin.readline()
"""


@pytest.mark.no_torch
@pytest.mark.parametrize("by_s", [-7200, 7200, 86_400])
def test_a_clock_that_is_set_while_a_stage_is_open(by_s: int, tmp_path: Path) -> None:
    """Of this host, read from the journal, and as another host reads it, from the heartbeat."""
    shim, logs, copy = clock_shim(tmp_path), tmp_path / "logs", tmp_path / "copy"
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, logs, str(by_s * 10**9)],
        env={**os.environ, "LD_PRELOAD": str(shim), "PYTHONPATH": str(ROOT)},
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    began = time.monotonic()
    try:
        assert process.stdout is not None and process.stdout.readline() == "set\n"
        csv = logs / "profile_rank_0.csv"
        while "my_utils.clock_step" not in csv.read_text():  # between drains, too
            assert process.poll() is None and time.monotonic() - began < 60
            time.sleep(0.05)
        (rank,) = snapshot(logs)["ranks"]
        assert (rank["source"], rank["state"]) == ("journal", "running")
        assert rank["open_s"] is not None and rank["open_s"] < time.monotonic() - began + 5
        written = (logs / "rank_0.heartbeat.json").read_bytes()
        while (logs / "rank_0.heartbeat.json").read_bytes() == written:  # the next beat
            assert process.poll() is None and time.monotonic() - began < 60
            time.sleep(0.05)
        copy.mkdir()
        (copy / "rank_0.heartbeat.json").write_bytes((logs / "rank_0.heartbeat.json").read_bytes())
        content = json.loads((copy / "rank_0.heartbeat.json").read_text())
        (stage,) = content["lanes"][0]["open"]
        assert 0 <= content["time"] - stage["since"] < time.monotonic() - began + 5
    finally:
        process.communicate("\n", timeout=60)
