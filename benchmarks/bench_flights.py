"""What torch's flight recorder adds to a step with 50 collectives, and reading it.

The bound is 0.7 % of a step of 100 ms, which is 700 us a step in the mean. Times are processor time
of the thread that calls the collectives, over gloo in a process alone. A minute of such steps has
16 in which the recorder is read, of 1,024. Each round has a process for the recorder on and one for
it off, as torch asks for it once.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.harness import Claim, Row

ROOT = Path(__file__).resolve().parent.parent
COLLECTIVES, RING = 50, 256
READ, PERIOD = 16, 1024
BOUND_US, DUMP_US = 700.0, 3000.0


class Backward:
    """Stands for a backward in which the last collectives were called."""

    def __init__(self, began_ns: int) -> None:
        self.began_ns = began_ns

    def read(self) -> tuple[int, int, list[int]]:
        return self.began_ns, time.monotonic_ns(), []


def measure(steps: int, store: str) -> None:
    """Prints the medians of a step's collectives and of reading them, us; 0.0 without recorder."""
    import torch
    import torch.distributed as dist

    from my_utils import _core
    from my_utils.run.stages.fsdp_backward import FlightSampler

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=0, world_size=1)
    rows: list[object] = []
    stages = _core.RunStages(lambda: _core.Timer("run"), lambda: True)
    sampler = FlightSampler(stages, lambda name, row, step: rows.append(row))
    tensor, took, read = torch.ones(8), [], []
    reads = READ if os.environ["TORCH_FR_BUFFER_SIZE"] != "0" else 0
    for step in range(steps + reads):
        began_ns, before_ns = time.monotonic_ns(), time.thread_time_ns()
        for _ in range(COLLECTIVES):
            dist.all_reduce(tensor)
        if step < steps:
            took.append(time.thread_time_ns() - before_ns)
            continue
        before_ns = time.thread_time_ns()
        sampler._write_times(step, Backward(began_ns))  # type: ignore[arg-type]
        read.append(time.thread_time_ns() - before_ns)
    if read and not rows:
        raise RuntimeError("nothing was read")
    dist.destroy_process_group()
    print(statistics.median(took) / 1e3, statistics.median(read or [0]) / 1e3)


def measured(ring: int, steps: int) -> tuple[float, float]:
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [sys.executable, "-m", "benchmarks.bench_flights", str(steps), f"{folder}/store"],
            env={**os.environ, "TORCH_FR_BUFFER_SIZE": str(ring)},
            cwd=ROOT, capture_output=True, text=True, check=True,
        )  # fmt: skip
    took, read = map(float, done.stdout.split()[-2:])
    return took, read


def run(smoke: bool) -> list[Row]:
    steps, rounds = (12, 1) if smoke else (300, 5)
    recorded, plain, read = [], [], []
    for _ in range(rounds):
        with_ring = measured(RING, steps)
        recorded.append(with_ring[0])
        read.append(with_ring[1])
        plain.append(measured(0, steps)[0])
    added = statistics.median(recorded) - statistics.median(plain)
    dump = statistics.median(read)
    what = (
        f"{COLLECTIVES} recorded collectives, added to a step, and read in {READ} of {PERIOD} steps"
    )
    mean = max(added, 0.0) + dump * READ / PERIOD
    return [
        Claim(what, mean, "0.7 % of 100 ms", BOUND_US, "us", 1),
        Claim(f"reading the last {RING} collectives once", dump, "3 ms", DUMP_US, "us", 1),
    ]


if __name__ == "__main__":
    measure(int(sys.argv[1]), sys.argv[2])
