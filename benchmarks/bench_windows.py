"""Windows of steps: what they cost the drain, and a verdict on a month of many ranks.

The windows of all ranks are made by the writer itself (`windows.c`). As a program it prints the
time and the peak of memory of `why` by the number of ranks:

    python -m benchmarks.bench_windows 1000 10000
"""

from __future__ import annotations

import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from benchmarks.bench_threads import ROOT, build
from benchmarks.harness import Claim
from my_utils import _core

STEPS = 2_000_000
STAGES = [*(f"stage{number:02}" for number in range(11)), "all_reduce"]
FINE = 2


class BenchTimer(_core.Timer):
    __slots__ = ()


class Judged(NamedTuple):
    """seconds: of `my_utils why`. bytes: its peak of memory. text: what it printed."""

    seconds: float
    bytes: int
    text: str


def drain_ns(folder: str, windows_bytes: int, steps: int) -> float:
    """Of a `step()` of twelve stages: the median, and of what the steps with a write take more the
    hundredth part."""
    _core.open_output(log_dir=folder, machine="node-0", windows_bytes=windows_bytes)
    timer = BenchTimer()
    took: dict[bool, list[int]] = {False: [], True: []}
    for step in range(steps):
        timer.set_step(step)
        for name in STAGES:
            timer.start(name)
            timer.stop(name)
        began = time.perf_counter_ns()
        timer.step()
        took[step % 100 == 0].append(time.perf_counter_ns() - began)
    _core.close_output()
    usual, writes = statistics.median(took[False]), statistics.median(took[True])
    return usual + (writes - usual) / 100


def drain_claim(turns: int, steps: int) -> Claim:
    """Sides take turns, as short as a quiet moment of the machine."""
    sides: dict[int, list[float]] = {0: [], 128 << 20: []}
    for _ in range(turns):
        for windows_bytes, found in sides.items():
            with tempfile.TemporaryDirectory() as folder:
                found.append(drain_ns(folder, windows_bytes, steps))
    without, with_windows = (min(found) for found in sides.values())
    return Claim("windows, a step of 12 stages", max(with_windows - without, 0.0),
                 "150 ns", 150.0, "ns", 1)  # fmt: skip


def program() -> Path:
    objects = [str(path) for path in build().parent.glob("*.o")]
    target = ROOT / "build" / "bench" / "windows"
    command = ["gcc", "-std=c11", "-D_GNU_SOURCE", "-O3", "-Icsrc/engine", "benchmarks/windows.c"]
    libraries = ["-lpthread", "-ldl", "-lm"]
    subprocess.run([*command, *objects, *libraries, "-o", str(target)], check=True, cwd=ROOT)
    return target


def make_run(made_by: Path, folder: Path, ranks: int, steps: int = STEPS) -> None:
    """The windows of all ranks, and CSVs with their newest steps."""
    subprocess.run([str(made_by), str(folder), str(ranks), str(steps), str(FINE)], check=True)
    with tempfile.TemporaryDirectory() as one:
        _core.open_output(log_dir=one, machine="node-0", host="node-0", world_size=ranks)
        _core.log_event("my_utils.sync", "INSTANT", metadata="stage=all_reduce,kind=collective")
        timer = BenchTimer()
        for step in range(steps - 40, steps):
            timer.set_step(step)
            for name in STAGES:
                timer.start(name)
                timer.stop(name)
            timer.step()
        _core.close_output()
        csv = (Path(one) / "profile_rank_0.csv").read_text()
        beat = (Path(one) / "rank_0.heartbeat.json").read_text()
    for rank in range(ranks):
        host = f"node-{rank // 8}"
        text = csv.replace("rank=0,", f"rank={rank},").replace("host=node-0", f"host={host}")
        (folder / f"profile_rank_{rank}.csv").write_text(text)
        said = beat.replace('"rank":0,', f'"rank":{rank},').replace('"node-0"', f'"{host}"')
        (folder / f"rank_{rank}.heartbeat.json").write_text(said)


def judged(folder: Path) -> Judged:
    command = [sys.executable, "-m", "my_utils", "why", str(folder)]
    began = time.perf_counter()
    child = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    text = child.stdout.read()
    _, _, used = os.wait4(child.pid, 0)
    child.returncode = 0
    return Judged(time.perf_counter() - began, used.ru_maxrss * 1024, text)


def judge_runs(counts: list[int], steps: int = STEPS) -> list[Judged]:
    """The second run of each: the files are in the page cache then."""
    made_by, found = program(), []
    for ranks in counts:
        with tempfile.TemporaryDirectory() as folder:
            make_run(made_by, Path(folder), ranks, steps)
            judged(Path(folder))
            found.append(judged(Path(folder)))
    return found


def run(smoke: bool) -> list[Claim]:
    drain = drain_claim(1 if smoke else 40, 500 if smoke else 2_000)
    (one,) = judge_runs([8 if smoke else 1000])
    return [
        drain,
        Claim("why, 1,000 ranks x 2,000,000 steps", one.seconds, "3 s", 3.0, "s", 1),
    ]


def main() -> None:
    counts = [int(text) for text in sys.argv[1:]] or [1000]
    found = judge_runs(counts)
    for ranks, one in zip(counts, found, strict=True):
        print(f"{ranks} ranks: {one.seconds:.2f} s, {one.bytes / 2**20:.0f} MiB\n{one.text}")
    if len(found) > 1:
        ratio = math.log(found[-1].seconds / found[0].seconds) / math.log(counts[-1] / counts[0])
        print(f"exponent in ranks: {ratio:.2f}")


if __name__ == "__main__":
    main()
