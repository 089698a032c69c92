"""What is read out of Python's own memory, which each version lays out anew: without torch, so that
it runs with every interpreter."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from ..support.no_gil import FREE_THREADED, needs_gil_waits
from ..support.ranks import ROOT

pytestmark = [pytest.mark.no_torch, pytest.mark.timeout(120)]

HEAD = """
import gc, json, threading, time
from my_utils import _core

_core.open_output(kind="memory")
stages = _core.RunStages(lambda: _core.Timer("run"), lambda: True)

def iteration(number, work):
    stages.begin(0)
    stages.end()
    began = time.perf_counter()
    work()
    took_us = round(1e6 * (time.perf_counter() - began))
    stages.end_host(number)
    return took_us

def start():
    # The first iteration has no row: nothing was read before it.
    iteration(0, lambda: None)
    iteration(1, lambda: time.sleep(0.005))

def end(found):
    stages.begin(0)
    stages.end()
    stages.forget_host()
    _core.drain()
    rows = [row for row in _core.memory_rows().decode().splitlines() if ",host,COUNTER," in row]
    print(json.dumps([found, rows]))
"""

# Every second iteration: another thread is in a call that does not let the GIL go.
WAITS = """
known = stages.sample_host()
start()
begun = threading.Event()

def hold():
    begun.set()
    sum(range(12_000_000))

def want():
    thread = threading.Thread(target=hold)
    thread.start()
    begun.wait()
    thread.join()
    begun.clear()

took = [iteration(n, want if n % 2 else lambda: time.sleep(0.1)) for n in range(2, 14)]
end([known, took])
"""

COLLECTIONS = """
gc.collect()
gc.disable()
start()
gc.callbacks.append(stages.collected)
stages.collected("stop", None)  # as another tool may call it
kept = [[number] for number in range(200_000)]
works = [lambda: time.sleep(0.005), gc.collect, lambda: gc.collect(1), gc.collect]
counts = []
for number, work in enumerate(works):
    if number == 3:
        del kept[50_000:]
        for _ in range(30_000):  # what the collection finds to free
            one = []
            one.append(one)
    counts.append(len(gc.get_objects()))
    iteration(2 + number, work)
end(counts)
"""


def run(script: str) -> tuple[Any, list[Mapping[str, int]]]:
    """What the script found, and the counter `host` of each of its iterations."""
    done = subprocess.run(
        [sys.executable, "-c", HEAD + script], env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    found, lines = json.loads(done.stdout)
    pairs = [dict(p.split("=") for p in line.split('"')[1].split(",")) for line in lines]
    return found, [{key: int(value) for key, value in one.items()} for one in pairs[1:]]


def has_pressure() -> bool:
    try:
        return Path("/proc/pressure/cpu").read_text().startswith("some ")
    except OSError:
        return False


@needs_gil_waits
def test_waits_for_the_gil_are_told_from_others() -> None:
    (known, took), rows = run(WAITS)
    assert known, "the place of the GIL is not known in this Python"
    waits, sleeps = rows[1::2], rows[::2]
    assert len(waits) == 6
    # A busy machine takes cores from the thread and from its sampler, which makes each share
    # smaller, and an iteration longer. It makes no wait for the GIL of a sleep, nor the reverse.
    gil_us, asleep_us = (sum(row["gil_us"] for row in part) for part in (waits, sleeps))
    other_us, beside_us = (sum(row["other_us"] for row in part) for part in (sleeps, waits))
    assert 0 < gil_us < 1.2 * sum(took[1::2]) + 6 * 20_000  # samples lie 20 ms apart
    assert gil_us > 2 * asleep_us and other_us > 2 * beside_us, (waits, sleeps)
    # Ten times a second, and the iterations take that long.
    assert any("host_cpu_stalled_us" in row for row in rows) == has_pressure()
    assert any("cpu_stalled_us" in row for row in rows) <= has_pressure()


def test_what_a_full_collection_looked_at() -> None:
    counts, rows = run(COLLECTIONS)
    assert [row["gc2_us"] > 0 for row in rows] == [False, True, False, True]
    assert ["gc_objects" in row for row in rows] == [False, True, False, True]
    for number in (1, 3):  # some that were made meanwhile, and frames of the test
        assert rows[number]["gc_objects"] == pytest.approx(
            counts[number], abs=5000 if FREE_THREADED else 3000
        )
    assert counts[1] - counts[3] == pytest.approx(150_000 - 30_000, abs=3000)
