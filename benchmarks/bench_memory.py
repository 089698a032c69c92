"""Memory and stalls of a long run: pairs with ``step()`` every 100, into a sink that drops them."""

from __future__ import annotations

import os
import resource
import time

from benchmarks.harness import Claim
from my_utils import _core

PAIRS_A_STEP = 100


class BenchTimer(_core.Timer):
    __slots__ = ()


def resident_bytes() -> int:
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def preemptions() -> int:
    return resource.getrusage(resource.RUSAGE_THREAD).ru_nivcsw


def record(timer: BenchTimer, steps: int) -> int:
    """Steps above 1 ms, with their pairs, in which the thread was not put aside for another.

    What the timer itself could cause - faults, locks, writes - counts; a busy machine does not.
    """
    stalls = 0
    for _ in range(steps):
        before = preemptions()
        began = time.perf_counter_ns()
        for _ in range(PAIRS_A_STEP):
            timer.start("forward")
            timer.stop("forward")
        timer.step()
        took = time.perf_counter_ns() - began
        stalls += took > 1_000_000 and preemptions() == before
    return stalls


def run(smoke: bool) -> list[Claim]:
    steps = 1000 if smoke else 100_000
    _core.open_output(kind="null")
    timer = BenchTimer()
    record(timer, steps // 10)
    before = resident_bytes()
    stalls = record(timer, steps - steps // 10)
    grown = resident_bytes() - before
    return [
        Claim(f"growth after the first of {steps * PAIRS_A_STEP:,} pairs", grown / 2**20, "1 MiB",
              1, "Mi", 1),
        Claim("stalls above 1 ms (+1)", stalls + 1, "none (+1)", 1, "", 1),
    ]  # fmt: skip
