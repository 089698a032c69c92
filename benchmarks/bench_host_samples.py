"""What it costs to sample what the training thread waits for, 50 times a second: the time on a core
of the thread that samples, while the training waits, alone and for a loader of eight workers.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from benchmarks.harness import Claim, Row

HERE = Path(__file__).resolve()
LIMIT = 0.8  # percent of a core

OWN = """
import json, os, subprocess, sys, time
from my_utils import _core

seconds, workers = float(sys.argv[1]), int(sys.argv[2])
_core.open_output(kind="null")
stages = _core.RunStages(lambda: _core.Timer("run"), lambda: True)
sleepers = [subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"])
            for _ in range(workers)]
before = set(os.listdir("/proc/self/task"))
stages.sample_host()
stages.watch_workers([one.pid for one in sleepers])
stages.end_host(1)
stages.begin(0)
stages.end()
(sampler,) = set(os.listdir("/proc/self/task")) - before

def on_a_core():
    with open(f"/proc/self/task/{sampler}/schedstat") as file:
        return int(file.read().split()[0])

time.sleep(0.2)
began, ran = time.monotonic_ns(), on_a_core()
time.sleep(seconds)
share = (on_a_core() - ran) / (time.monotonic_ns() - began)
stages.forget_host()
for one in sleepers:
    one.kill()
    one.wait()
print(json.dumps(100 * share))
"""


def share_of_a_core(seconds: float, workers: int) -> float:
    """In percent."""
    done = subprocess.run(
        [sys.executable, "-c", OWN, str(seconds), str(workers)],
        stdout=subprocess.PIPE, text=True, check=True, cwd=HERE.parents[1],
    )  # fmt: skip
    return float(json.loads(done.stdout.splitlines()[-1]))


def run(smoke: bool = False) -> list[Row]:
    seconds = 0.5 if smoke else 10.0
    return [
        Claim(what, share_of_a_core(seconds, workers), "0.8 % of a core", LIMIT, "%", 1.0)
        for what, workers in (
            ("sampling a thread that waits", 0),
            ("sampling it and eight workers", 8),
        )
    ]
