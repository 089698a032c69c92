"""Memory and stalls of a long run: pairs with ``step()`` every 100, into a sink that drops them."""

from __future__ import annotations

import os
import time

from benchmarks.harness import Claim
from my_utils import _core

PAIRS_A_STEP = 100


class BenchTimer(_core.Timer):
    __slots__ = ()


def resident_bytes() -> int:
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def record(timer: BenchTimer, steps: int) -> list[int]:
    """Times of the steps in ns, with their pairs."""
    times = [0] * steps
    for i in range(steps):
        began = time.perf_counter_ns()
        for _ in range(PAIRS_A_STEP):
            timer.start("forward")
            timer.stop("forward")
        timer.step()
        times[i] = time.perf_counter_ns() - began
    return times


def spin(steps: int) -> list[int]:
    """The same loop without a timer: what the machine itself stalls."""
    times = [0] * steps
    clock = time.perf_counter_ns
    for i in range(steps):
        began = clock()
        for _ in range(PAIRS_A_STEP):
            clock()
            clock()
        times[i] = clock() - began
    return times


def run(smoke: bool) -> list[Claim]:
    steps = 1000 if smoke else 100_000
    _core.open_output(kind="null")
    timer = BenchTimer()
    record(timer, steps // 10)
    before = resident_bytes()
    stalls = 0
    control = 0
    for _ in range(9):
        stalls += sum(took > 1_000_000 for took in record(timer, steps // 10))
        control += sum(took > 1_000_000 for took in spin(steps // 10))
    grown = resident_bytes() - before
    return [
        Claim(f"growth after the first of {steps * PAIRS_A_STEP:,} pairs", grown / 2**20, "1 MiB",
              1, "Mi", 1),
        Claim("steps above 1 ms", stalls, "a bare loop (+1)", control + 1, "", 1),
    ]  # fmt: skip
