"""What `set_step` costs while nobody asks for a capture, and what listening for requests adds.

With BEFORE set to a folder that holds the my_utils of another build, its set_step is measured too,
in processes of both builds that take turns.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable

from benchmarks.harness import Claim, nanoseconds_a_call, take_turns
from my_utils import _core

CALLS = 5000

PROGRAM = """
import sys, tempfile, time
from my_utils import GlobalLogger, MyTimer
folder = tempfile.TemporaryDirectory()
GlobalLogger().setup(folder.name, console=False)
timer = MyTimer()
best = 1e9
for _ in range(int(sys.argv[1])):
    began = time.perf_counter_ns()
    for step in range(2000):
        timer.set_step(7)
    best = min(best, (time.perf_counter_ns() - began) / 2000)
GlobalLogger().close()
print(best)
"""


def in_a_process(path: str, rounds: int) -> float:
    """The fastest round's ns a call, the loop included, of the build in that folder."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(rounds)],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=True,
    )
    return float(done.stdout)


def against_before(before: str, smoke: bool) -> Claim:
    here = os.path.dirname(os.path.dirname(_core.__file__))
    sides: dict[str, list[float]] = {here: [], before: []}
    for _ in range(1 if smoke else 15):
        for path, times in sides.items():
            times.append(in_a_process(path, 20 if smoke else 400))
    now, then = (statistics.median(times) for times in sides.values())
    return Claim("set_step, added since the other build", now - then, "3 ns", 3, "ns", 1)


def set_steps(timer: _core.Timer | _core.NoOpTimer) -> Callable[[], None]:
    set_step = timer.set_step

    def repeat() -> None:
        for _ in range(CALLS):
            set_step(7)

    return repeat


def hook(timer: _core.Timer, step: int) -> None:
    raise AssertionError("nobody asks for anything")


def added_by_listening(calls: Callable[[], None], rounds: int) -> float:
    """ns a call, in turns; to begin to listen reads the control file, which is not timed."""
    times: dict[bool, list[float]] = {True: [], False: []}
    for _ in range(rounds):
        for listens, values in times.items():
            _core.set_step_hook(hook if listens else None)
            values.append(nanoseconds_a_call(calls, CALLS))
    return statistics.median(times[True]) - statistics.median(times[False])


def store_looks(polls: int) -> list[Claim]:
    """What a rank pays that listens to torch's store, whose server is in this process."""
    try:
        from torch._C._distributed_c10d import TCPStore
    except ImportError:
        print("torch is missing: no listening to its store", file=sys.stderr)
        return []
    from my_utils.profilers.capture.on_demand.store import POLL_S, Listener, open_store

    server = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    listener = Listener(open_store(f"127.0.0.1:{server.port}"), 0, 1, lambda request: None)
    listener.end()
    began = time.thread_time()
    for _ in range(polls):
        listener._poll()
    share = (time.thread_time() - began) / polls / POLL_S
    return [Claim("listening to torch's store, of a core", 100 * share, "0.1 %", 0.1, "%", 1)]


def loop() -> None:
    for _ in range(CALLS):
        pass


def run(smoke: bool) -> list[Claim]:
    rounds = 3 if smoke else 101
    with tempfile.TemporaryDirectory() as folder:
        _core.open_output(log_dir=folder)
        calls = set_steps(_core.Timer("bench"))
        sides = {"loop": loop, "ours": calls, "no-op": set_steps(_core.NoOpTimer())}
        added = added_by_listening(calls, rounds)
        _core.set_step_hook(hook)
        times = take_turns(sides, calls=CALLS, rounds=rounds)
        _core.set_step_hook(None)
        _core.close_output()
    ns = {name: value - times["loop"] for name, value in times.items()}
    claims = [
        Claim("set_step", ns["ours"], "of a no-op timer", ns["no-op"], "ns", 6),
        Claim("set_step, added by listening", added, "3 ns", 3, "ns", 1),
    ]
    claims += store_looks(20 if smoke else 5000)
    before = os.environ.get("BEFORE")
    return [*claims, against_before(before, smoke)] if before else claims
