"""What writing costs: records to CSV rows, and the ``step()`` of a usual training loop."""

from __future__ import annotations

import csv
import datetime
import io
import os
import statistics
import tempfile
import time
from pathlib import Path

from benchmarks.harness import Claim
from my_utils import _core

STAGES_A_DRAIN = 2000


class BenchTimer(_core.Timer):
    __slots__ = ()


def rows_like_ours(count: int) -> list[tuple[int, int, str, str, int, int, int]]:
    """The integers behind ``count`` rows: time, step, name, type, duration, node, parent."""
    began = 1_750_000_000_123_456_789
    return [
        (began + 1000 * i, i // 12, "forward", "END" if i % 2 else "START", 1000, i // 2 + 1, 1)
        for i in range(count)
    ]


def write_from_integers(rows: list[tuple[int, int, str, str, int, int, int]]) -> None:
    """What a plain-Python timer does: the same columns, made from the same integers."""
    writer = csv.writer(io.StringIO())
    fromtimestamp = datetime.datetime.fromtimestamp
    for time_ns, step, name, kind, duration_ns, node, parent in rows:
        second, rest = divmod(time_ns, 1_000_000_000)
        readable = fromtimestamp(second).strftime("%Y-%m-%d %H:%M:%S")
        writer.writerow(
            (
                f"{second}.{rest:09d}",
                f"{readable}.{rest // 1000:06d}",
                "node-0",
                step,
                name,
                kind,
                f"{duration_ns / 1e6:.6f}" if kind == "END" else "",
                f"node_id={node},parent_id={parent},tid=12345",
            )
        )


def write_ready_strings(rows: list[tuple[str, ...]]) -> None:
    csv.writer(io.StringIO()).writerows(rows)


def time_drain(timer: BenchTimer) -> float:
    """ns a row, of a drain into a sink that drops what is formatted."""
    for _ in range(STAGES_A_DRAIN):
        timer.start("forward")
        timer.stop("forward")
    began = time.perf_counter_ns()
    timer.step()
    return (time.perf_counter_ns() - began) / (2 * STAGES_A_DRAIN)


def drain_claims(rounds: int) -> list[Claim]:
    _core.open_output(kind="null", machine="node-0")
    timer = BenchTimer()
    integers = rows_like_ours(2 * STAGES_A_DRAIN)
    text = ("1750000000.123456789", "2025-06-15 15:06:40.123456", "node-0", "12", "forward",
            "START", "", "node_id=12345,parent_id=12344,tid=12345")  # fmt: skip
    strings: list[tuple[str, ...]] = [text] * (2 * STAGES_A_DRAIN)
    ours, from_integers, from_strings = [], [], []
    for _ in range(rounds):
        ours.append(time_drain(timer))
        began = time.perf_counter_ns()
        write_from_integers(integers)
        middle = time.perf_counter_ns()
        write_ready_strings(strings)
        ended = time.perf_counter_ns()
        from_integers.append((middle - began) / len(integers))
        from_strings.append((ended - middle) / len(strings))
    row = statistics.median(ours)
    return [
        Claim("drain, a row", row, "csv.writer from integers", statistics.median(from_integers),
              "ns", 30, faster=True),
        Claim("drain, a row", row, "csv.writer, ready strings", statistics.median(from_strings),
              "ns", 15, faster=True),
    ]  # fmt: skip


def step_claim(rounds: int) -> Claim:
    """A ``step()`` of 12 rows into a file, against one ``os.write`` of as many bytes."""
    with tempfile.TemporaryDirectory() as directory:
        report = _core.open_output(log_dir=directory, machine="node-0")
        timer = BenchTimer()
        path = Path(report["csv_path"])
        fd = os.open(Path(directory) / "peer", os.O_WRONLY | os.O_CREAT)
        ours, peer = [], []
        before = path.stat().st_size
        for i in range(rounds):
            timer.set_step(i)
            timer.start("iter")
            for name in ("data", "forward", "backward", "all_reduce", "optimizer"):
                timer.start(name)
                timer.stop(name)
            timer.stop("iter")
            began = time.perf_counter_ns()
            timer.step()
            ours.append(time.perf_counter_ns() - began)
            if i == 0:
                row_bytes = bytes(path.stat().st_size - before)
            began = time.perf_counter_ns()
            os.write(fd, row_bytes)
            peer.append(time.perf_counter_ns() - began)
        os.close(fd)
        _core.open_output(kind="memory")
    return Claim("step() of 12 rows", statistics.median(ours), "os.write of as many bytes",
                 statistics.median(peer), "ns", 3)  # fmt: skip


def run(smoke: bool) -> list[Claim]:
    return [*drain_claims(2 if smoke else 51), step_claim(20 if smoke else 2001)]
