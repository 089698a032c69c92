"""What a pair of start and stop costs on a Python without a GIL, with 1, 2 and 16 threads.

Run it with such an interpreter, for which the module was built in place::

    python3.13t setup.py build_ext --inplace
    python3.13t -m benchmarks free_threaded

All threads share one timer. CPython 3.13 counts the references to an object of another thread by
atomic additions: calls of `timer.start` pay for that, those of a method that the thread has bound
do not. Times are of the threads' own processor time, so that neither other programs nor threads
without a core count; the cost of the loop is taken off.
"""

from __future__ import annotations

import statistics
import sys
import threading
import time
from collections.abc import Callable

from benchmarks.harness import Claim, NotMeasured, Row
from my_utils import _core

THREADS = (1, 2, 16)
CALLS = 1000
ROUNDS = 60
WHAT = "a pair without a GIL, {} threads"
SHARED = "the same, not bound before, {} threads"


def loop() -> None:
    for _ in range(CALLS):
        pass


def perf_counters() -> None:
    clock = time.perf_counter
    for _ in range(CALLS):
        clock()
        clock()


def pairs(timer: _core.Timer) -> Callable[[], None]:
    def bound_pairs() -> None:
        start, stop = timer.start, timer.stop
        for _ in range(CALLS):
            start("forward")
            stop("forward")

    return bound_pairs


def shared_pairs(timer: _core.Timer) -> Callable[[], None]:
    def unbound_pairs() -> None:
        for _ in range(CALLS):
            timer.start("forward")
            timer.stop("forward")

    return unbound_pairs


def turns(sides: list[Callable[[], None]], rounds: int, found: list[list[float]]) -> None:
    """Appends what a call of each side costs the calling thread in ns, by turns."""
    times: list[list[int]] = [[] for _ in sides]
    for _ in range(rounds):
        for side, own in zip(sides, times, strict=True):
            before = time.thread_time_ns()
            side()
            own.append(time.thread_time_ns() - before)
        _core.drain(10.0)
    found.append([statistics.median(own) / CALLS for own in times])


def measure(count: int, rounds: int) -> list[float]:
    """A pair, one whose methods were not bound before, two perf_counter(); ns, medians."""
    timer = _core.Timer("bench")
    sides = [loop, pairs(timer), shared_pairs(timer), perf_counters]
    found: list[list[float]] = []
    threads = [threading.Thread(target=turns, args=(sides, rounds, found)) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    nothing, *others = (statistics.median(side) for side in zip(*found, strict=True))
    return [side - nothing for side in others]


def run(smoke: bool) -> list[Row]:
    if getattr(sys, "_is_gil_enabled", lambda: True)():
        return [NotMeasured(WHAT.format("1, 2 and 16"), "a free-threaded Python")]
    _core.open_output(kind="null")
    rows: list[Row] = []
    for count in THREADS:
        bound, shared, peer = measure(count, 3 if smoke else ROUNDS)
        rows += [
            Claim(WHAT.format(count), bound, "two perf_counter()", peer, "ns", 0.6),
            Claim(SHARED.format(count), shared, "two perf_counter()", peer, "ns", 1.2),
        ]
    _core.close_output()
    return rows
