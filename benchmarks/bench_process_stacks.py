"""What a dump of the own process's stacks costs: 32 frames of one thread, beside py-spy's dump of
the same process, which stops it meanwhile and starts a process of its own.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import time

from benchmarks.harness import Claim, NotMeasured, Row
from my_utils import _core

FRAMES = 32
WHAT = f"dump of {FRAMES} frames"


def at_depth(frames: int, rounds: int) -> list[float]:
    """Microseconds a dump, each the mean of a hundred, from `frames` frames below this one."""
    if frames > 1:
        return at_depth(frames - 1, rounds)
    times = []
    for _ in range(rounds):
        found = json.loads(_core.read_stacks(100))
        times.append(found["spent_ns"] / found["rounds"] / 1000)
    return times


def py_spy_times(rounds: int) -> list[float]:
    """Microseconds; empty where py-spy may not read this process."""
    times = []
    for _ in range(rounds):
        began = time.perf_counter()
        done = subprocess.run(
            ["py-spy", "dump", "--pid", str(os.getpid())], capture_output=True, check=False
        )
        if done.returncode != 0:
            return []
        times.append((time.perf_counter() - began) * 1e6)
    return times


def run(smoke: bool = False) -> list[Row]:
    rounds = 2 if smoke else 50
    own = statistics.median(at_depth(FRAMES, rounds))
    rows: list[Row] = [Claim(WHAT, own, "100 µs a dump", 100.0, "µs", 1.0)]
    theirs = [] if shutil.which("py-spy") is None else py_spy_times(2 if smoke else 10)
    if theirs:
        peer = statistics.median(theirs)
        rows.append(Claim(f"{WHAT}, beside py-spy", own, "py-spy dump", peer, "µs", 10.0, True))
    else:
        rows.append(
            NotMeasured(f"{WHAT}, beside py-spy", "py-spy, and the right to read a process")
        )
    return rows
