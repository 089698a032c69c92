"""What a training script times by its own clock, for the truth of a ledger."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

RANK, WORLD = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
ATTEMPT = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
truth: dict[str, int] = defaultdict(int)  # ns, by row
stays: list[int] = []  # ns, of each step in the stage in which ranks meet
_inner_ns = [0]  # by level: of what is timed within it


@contextlib.contextmanager
def timed(row: str) -> Iterator[None]:
    """Without what is timed within."""
    begin = time.monotonic_ns()
    _inner_ns.append(0)
    try:
        yield
    finally:
        took_ns = time.monotonic_ns() - begin
        truth[row] += took_ns - _inner_ns.pop()
        _inner_ns[-1] += took_ns


@contextlib.contextmanager
def meeting() -> Iterator[None]:
    begin = time.monotonic_ns()
    yield
    stays.append(time.monotonic_ns() - begin)


def began_ns() -> int:
    """When this process began, on the axis of time.monotonic_ns."""
    ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    since_boot = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    return time.monotonic_ns() - since_boot + ticks * (10**9 // os.sysconf("SC_CLK_TCK"))


def write(folder: str) -> None:
    data = {**truth, "stays": stays}
    (Path(folder) / f"truth-{RANK}-{ATTEMPT}.json").write_text(json.dumps(data))
