"""CSV to trace: time, memory and cores, against a plain-Python script and polars.

Times are those of the processor (user and system), so that a busy machine spoils them less; the
files lie on memory-backed disk where there is one. The ten times as many rows are converted on the
disk of the temporary files too. Processes find bytecode, as installed packages have it.
"""

from __future__ import annotations

import atexit
import csv
import json
import os
import random
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from benchmarks.harness import Claim, NotMeasured, Row

ROOT = Path(__file__).resolve().parent.parent
HEADER = "timestamp_unix,readable_time,machine_id,step,event_name,event_type,duration_ms,metadata\n"
STAGES = ("data_load", "forward", "backward", "all_reduce", "optimizer.step")
NODE_ID = re.compile(r"node_id=(\d+)")

CONVERT = """
import sys, time
from my_utils.csv2trace import Options, convert
before = time.process_time(), time.monotonic()
convert(sys.argv[3:], sys.argv[1], Options(jobs=int(sys.argv[2])))
after = time.process_time(), time.monotonic()
peak = next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM"))
print(after[0] - before[0], after[1] - before[1], peak)
"""


def make_csv(path: Path, rows: int) -> None:
    """Steps of one stage `iter` with five stages in it, as MyTimer writes them."""
    rng = random.Random(7)
    at, node = 1_750_000_000_000_000_000, 0

    def line(step: int, name: str, kind: str, length: str, mine: int, parent: int) -> str:
        seconds, rest = divmod(at, 10**9)
        readable = f"2025-06-15 15:06:40.{rest // 1000:06d}"
        return (
            f"{seconds}.{rest:09d},{readable},node-0,{step},{name},{kind},{length},"
            f'"node_id={mine},parent_id={parent}"\n'
        )

    with path.open("w", encoding="utf-8") as out:
        out.write(HEADER)
        for step in range(rows // 12):
            node += 1
            root, began = node, at
            out.write(line(step, "iter", "START", "", root, 0))
            for name in STAGES:
                node += 1
                length = rng.randrange(10_000, 10_000_000)
                out.write(line(step, name, "START", "", node, root))
                at += length
                out.write(line(step, name, "END", f"{length / 1e6:.6f}", node, root))
                at += 1000
            out.write(line(step, "iter", "END", f"{(at - began) / 1e6:.6f}", root, 0))
            at += 10_000


def plain_python(source: Path, target: Path) -> None:
    """What one writes without this package: all rows, sorted, as begin and end events."""
    with source.open(encoding="utf-8", newline="") as handle:
        rows = sorted(csv.DictReader(handle), key=lambda found: float(found["timestamp_unix"]))
    events = []
    for found in rows:
        arguments: dict[str, object] = {
            "step": int(found["step"]),
            "duration_ms": float(found["duration_ms"] or 0),
            "metadata": found["metadata"],
        }
        node = NODE_ID.search(found["metadata"])
        if node is not None:
            arguments["node_id"] = int(node[1])
        events.append({
            "name": found["event_name"],
            "cat": "MyTimer",
            "ph": {"START": "B"}.get(found["event_type"], "E"),
            "ts": int(float(found["timestamp_unix"]) * 1e6),
            "pid": found["machine_id"],
            "tid": "step_" + found["step"],
            "args": arguments,
        })  # fmt: skip
    with target.open("w", encoding="utf-8") as out:
        json.dump({"traceEvents": events}, out)


def polars_to_ndjson(source: Path, target: Path) -> None:
    """The fastest general tool: it makes no events, it only writes the columns as JSON."""
    import polars  # type: ignore[import-not-found, unused-ignore]

    polars.scan_csv(source).sink_ndjson(target)


def seconds_of(work: Callable[[], None]) -> float:
    began = time.process_time()
    work()
    return time.process_time() - began


def convert(target: Path, sources: list[Path], jobs: int = 1) -> tuple[float, float, float]:
    """Processor seconds, seconds, and the peak of resident memory in MiB."""
    target.unlink(missing_ok=True)
    result = subprocess.run(
        [sys.executable, "-c", CONVERT, str(target), str(jobs), *map(str, sources)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    cpu, wall, peak_kib = map(float, result.stdout.split())
    return cpu, wall, peak_kib / 1024


def process_seconds(target: Path, source: Path) -> float:
    """Processor seconds of the command, with the start and the end of Python."""
    target.unlink(missing_ok=True)
    command = [sys.executable, "-m", "my_utils.csv2trace", str(source), "-o", str(target)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    child = subprocess.Popen([*command, "--quiet"], env=environment)
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode != 0:
        raise subprocess.CalledProcessError(child.returncode, command)
    return usage.ru_utime + usage.ru_stime


def best(count: int, work: Callable[[], tuple[float, float, float]]) -> tuple[float, float, float]:
    return min((work() for _ in range(count)), key=lambda found: found[0])


@dataclass(frozen=True)
class Place:
    """A folder with a file of so many rows and one of ten times as many."""

    folder: Path
    small: Path
    large: Path


@cache
def places(rows: int) -> tuple[Place, Place]:
    """One in memory, where there is such a disk, and one on the disk; for all runs of a process."""
    shared = Path("/dev/shm")
    memory = shared.is_dir() and os.access(shared, os.W_OK)
    parents = (str(shared) if memory else None, "/var/tmp")
    made = []
    for parent in parents:
        folder = Path(tempfile.mkdtemp(prefix="csv2trace-", dir=parent))
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        made.append(Place(folder, folder / "profile_rank_0.csv", folder / "profile_rank_1.csv"))
    first, on_disk = made
    make_csv(first.small, rows)
    make_csv(first.large, rows * 10)
    shutil.copyfile(first.small, on_disk.small)
    shutil.copyfile(first.large, on_disk.large)
    return first, on_disk


def run(smoke: bool = False) -> list[Row]:
    rows = 12_000 if smoke else 1_200_000
    repeats = 1 if smoke else 5
    place, disk = places(rows)
    folder, source, out = place.folder, place.small, place.folder / "out.json"
    ours, _, peak = best(repeats, lambda: convert(out, [source]))
    perfetto, _, _ = best(repeats, lambda: convert(folder / "out.pftrace", [source]))
    plain = seconds_of(lambda: plain_python(source, folder / "plain.json"))
    (folder / "plain.json").unlink()
    process = statistics.median(process_seconds(out, source) for _ in range(2 * repeats + 1))
    claims: list[Row] = [
        Claim("csv2trace to JSON, 1.2 M rows", ours, "plain Python", plain, "s", 100, True),
        Claim("the same, a whole process", process, "plain Python", plain, "s", 100, True),
        Claim("csv2trace to protobuf, 1.2 M rows", perfetto, "plain Python", plain, "s", 100, True),
        Claim("csv2trace, peak memory", peak, "64 MiB", 64, "MiB", 1),
    ]
    claims += against_polars(source, folder, ours)
    claims += larger(place, ours, peak, repeats)
    claims += eight_files(folder, source, repeats)
    return claims + on_disk(disk, repeats)


def against_polars(source: Path, folder: Path, ours: float) -> list[Row]:
    os.environ.setdefault("POLARS_MAX_THREADS", "1")
    try:
        polars_to_ndjson(source, folder / "out.ndjson")
    except ImportError:
        return [NotMeasured("csv2trace to JSON, against polars", "`pip install polars`")]
    peer = min(
        seconds_of(lambda: polars_to_ndjson(source, folder / "out.ndjson")) for _ in range(3)
    )
    (folder / "out.ndjson").unlink()
    return [Claim("csv2trace to JSON, 1.2 M rows", ours, "polars to ndjson", peer, "s", 2.5, True)]


def larger(place: Place, ours: float, peak: float, repeats: int) -> list[Claim]:
    out = place.folder / "large.json"
    cpu, _, large_peak = best(min(repeats, 2), lambda: convert(out, [place.large]))
    out.unlink()
    return [
        Claim("csv2trace, ten times the rows", cpu, "1.2 M rows", ours, "s", 10.5),
        Claim("csv2trace, ten times the rows", large_peak, "1.2 M rows", peak, "MiB", 1.1),
    ]


def on_disk(place: Place, repeats: int) -> list[Claim]:
    """The same two sizes in turns, with the writing back that the kernel charges to the process."""
    out = place.folder / "out.json"
    ratios, times = [], []
    for _ in range(repeats):
        times.append(convert(out, [place.small])[0])
        ratios.append(convert(out, [place.large])[0] / times[-1])
    out.unlink()
    one, ratio = statistics.median(times), statistics.median(ratios)
    return [Claim("ten times the rows, on disk", one * ratio, "1.2 M rows", one, "s", 10.5)]


def eight_files(folder: Path, source: Path, repeats: int) -> list[Claim]:
    sources = []
    for rank in range(10, 18):
        copy = folder / f"profile_rank_{rank}.csv"
        copy.write_bytes(source.read_bytes())
        sources.append(copy)
    out = folder / "eight.json"
    _, one, _ = best(min(repeats, 2), lambda: convert(out, sources, 1))
    _, two, _ = best(min(repeats, 2), lambda: convert(out, sources, 2))
    for path in (*sources, out):
        path.unlink()
    return [Claim("csv2trace, eight files, two threads", two, "one thread", one, "s", 1.5, True)]
