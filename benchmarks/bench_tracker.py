"""What the performance tracker costs at ten samples a second, in processor time of a process that
sleeps meanwhile: without NVML, and with a stand-in for NVML that has two GPUs (a real driver takes
longer, which this machine cannot tell). Spans with the tracker and without take turns.

The peer is what one would write with psutil.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.harness import Claim

ROOT = Path(__file__).resolve().parent.parent
INTERVAL_S = 0.1

# Prints the medians, in percent of one core, of what a span takes on top of an empty one.
SPANS = """
import json, statistics, sys, threading, time
import psutil
from my_utils import GlobalLogger, MyTimer
from my_utils.gpu_mem_tracker import GPU_Performance_Tracker

folder, hardware, interval, span_s, rounds = sys.argv[1:]
interval, span_s = float(interval), float(span_s)
GlobalLogger().setup(folder, console=False)
timer = MyTimer()
timer.set_step(1)
timer.start("iter")


class Plain:
    def start(self):
        self.stop_now = threading.Event()
        self.samples = []
        self.thread = threading.Thread(target=self.sample, daemon=True)
        self.thread.start()

    def sample(self):
        process = psutil.Process()
        while not self.stop_now.wait(interval):
            with process.oneshot():
                memory, io = process.memory_info(), process.io_counters()
                times = process.cpu_times()
            self.samples.append((time.time(), psutil.cpu_percent(), memory, io, times))

    def stop(self):
        self.stop_now.set()
        self.thread.join()


class Ours:
    tracker = GPU_Performance_Tracker(folder + "/run", interval, hardware == "1", plot=False)

    def start(self):
        self.tracker.start_monitoring()

    def stop(self):
        self.tracker.stop_monitoring()


class Nothing:
    def start(self):
        pass

    stop = start


def percent(side):
    side.start()
    time.sleep(2 * interval)  # the start is not part of it
    wall, used = time.perf_counter(), time.process_time()
    time.sleep(span_s)
    used, wall = time.process_time() - used, time.perf_counter() - wall
    side.stop()
    return 100 * used / wall


sides = {"nothing": Nothing(), "ours": Ours(), "psutil": Plain()}
found = {name: [] for name in sides}
for _ in range(int(rounds)):
    for name, side in sides.items():
        found[name].append(percent(side))
medians = {name: statistics.median(values) for name, values in found.items()}
base = medians.pop("nothing")
print(json.dumps({name: value - base for name, value in medians.items()}))
"""


def percents(hardware: bool, span_s: float, rounds: int, library: Path | None) -> dict[str, float]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    if library is not None:
        environment["LD_LIBRARY_PATH"] = str(library.parent)
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [sys.executable, "-c", SPANS, folder, str(int(hardware)), str(INTERVAL_S), str(span_s),
             str(rounds)],
            env=environment, check=True, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
    found: dict[str, float] = json.loads(done.stdout)
    return found


def stand_in_for_nvml(folder: str) -> Path:
    library = Path(folder) / "libnvidia-ml.so.1"
    source = ROOT / "tests" / "fakes" / "fake_nvml.c"
    command = [os.environ.get("CC", "cc"), "-O1", "-shared", "-fPIC", str(source), "-o"]
    subprocess.run([*command, str(library)], check=True)
    return library


def run(smoke: bool) -> list[Claim]:
    span_s, rounds = (0.5, 1) if smoke else (5.0, 7)
    plain = percents(False, span_s, rounds, None)
    claims = [
        Claim("tracker at 10 Hz, of one core", plain["ours"], "half a percent", 0.5, "%", 1),
        Claim("tracker at 10 Hz, of one core", plain["ours"], "a thread with psutil",
              plain["psutil"], "%", 1),
    ]  # fmt: skip
    try:
        import pynvml as pynvml
    except ImportError:
        return claims
    with tempfile.TemporaryDirectory() as folder:
        with_nvml = percents(True, span_s, rounds, stand_in_for_nvml(folder))
    reads = with_nvml["ours"] - plain["ours"]
    claims.append(Claim("NVML of two GPUs (stand-in) on top", reads, "half a percent", 0.5, "%", 1))
    return claims
