"""Ranks for tests of `my_utils live`: processes that stand in stages, and heartbeats of others."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..conftest import ROOT

RANK = """
import ctypes, sys
ctypes.CDLL(None).prctl(1, 9)  # die with the parent
from my_utils import _core
log_dir, rank, world, step, stages, journal_dir = sys.argv[1:]
_core.open_output(log_dir=log_dir, rank=int(rank), world_size=int(world), machine="node-a",
                  journal_dir=journal_dir)
timer = _core.Timer("train")
timer.set_step(int(step))
with timer.time_stage("warm up"):
    pass
for stage in filter(None, stages.split(",")):
    timer.start(stage)
print("ready", flush=True)
for line in sys.stdin:
    word, _, argument = line.strip().partition(" ")
    if word == "close":
        for stage in reversed(stages.split(",")):
            timer.stop(stage)
        _core.close_output()
        break
    if word == "step":
        timer.set_step(int(argument))
    elif word == "start":
        timer.start(argument)
    elif word == "stop":
        timer.stop(argument)
    print("done", flush=True)
"""

AHEAD_S = 600

Start = Callable[..., subprocess.Popen[str]]


class Started:
    """Processes that are in the named stages and stay there until they are told to go on."""

    def __init__(self, log_dir: Path) -> None:
        self.log_dir = log_dir
        self.processes: list[subprocess.Popen[str]] = []

    def __call__(
        self,
        rank: int,
        step: int,
        stages: str,
        *,
        world: int = 2,
        log_dir: Path | None = None,
        journal_dir: str = "",
    ) -> subprocess.Popen[str]:
        folder = str(log_dir or self.log_dir)
        arguments = [folder, str(rank), str(world), str(step), stages, journal_dir]
        process = subprocess.Popen(
            [sys.executable, "-c", RANK, *arguments],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.processes.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        return process

    def end(self) -> None:
        for process in self.processes:
            process.kill()
            process.communicate()


def tell(process: subprocess.Popen[str], what: str) -> None:
    """`step 5`, `start data` or `stop data`."""
    assert process.stdin is not None and process.stdout is not None
    process.stdin.write(f"{what}\n")
    process.stdin.flush()
    assert process.stdout.readline() == "done\n"


def kill(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.wait()


def tell_to_close(process: subprocess.Popen[str]) -> None:
    process.communicate("close\n")


def wait_until(condition: Callable[[], object], seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited for nothing"
        time.sleep(0.05)


def beat(rank: int, step: int, *stages: str, ago_s: float = 60.0, **more: object) -> dict[str, Any]:
    """A heartbeat as the recorder writes it, by clocks that are ahead: whenever it is read, its
    stages are as old as is said here."""
    now = float(_later())
    opened = [{"name": name, "step": step, "since": now - ago_s} for name in stages]
    lane = {"tid": 100 + rank, "thread": "MainThread", "tag": "", "step": step, "open": opened}
    return {
        "version": 1,
        "rank": rank,
        "world_size": 0,
        "pid": 100 + rank,
        "attempt": 1,
        "host": f"node-{rank}",
        "label": f"rank_{rank}",
        "time": now,
        "closed": False,
        "dropped": 0,
        "lanes": [lane],
        **more,
    }


def write_beats(folder: Path, *beats: dict[str, Any]) -> None:
    for content in beats:
        path = folder / f"{content['label']}.heartbeat.json"
        path.write_text(json.dumps(content), encoding="utf-8")
        os.utime(path, (_later(), _later()))


def _later() -> int:
    return int(time.time()) + AHEAD_S
