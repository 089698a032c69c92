"""Timing that holds on a noisy machine: the sides of a comparison take turns, medians are quoted.

A benchmark module has a function ``run(smoke: bool) -> list[Row]``; ``python -m benchmarks``
finds it by its name, ``bench_*.py``. Rows that are missed are measured again, see `steadied`.
"""

from __future__ import annotations

import math
import os
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path


@dataclass(frozen=True)
class Claim:
    """One row of the table.

    ``ours`` and ``peer`` are in ``unit``; the ratio is ours / peer, or peer / ours where ``faster``
    is set: how many times faster we are. ``bound`` is what the ratio must reach. A row that was
    measured again quotes the medians, and ``ratios`` has the ratio of each time.
    """

    what: str
    ours: float
    peer_name: str
    peer: float
    unit: str
    bound: float
    faster: bool = False
    ratios: tuple[float, ...] = ()

    @property
    def ratio(self) -> float:
        above, below = (self.peer, self.ours) if self.faster else (self.ours, self.peer)
        if not below:  # a difference of medians, or what two tools miss of what both find
            return math.inf if above else 1.0
        return above / below

    @property
    def met(self) -> bool:
        return self.ratio >= self.bound if self.faster else self.ratio <= self.bound

    @property
    def wanted(self) -> str:
        return f">= {self.bound:g} x faster" if self.faster else f"<= {self.bound:g} x"

    @property
    def verdict(self) -> str:
        verdict = "met" if self.met else "MISSED"
        if not self.ratios:
            return verdict
        low, high = min(self.ratios), max(self.ratios)
        return f"{verdict}, {low:.3g} to {high:.3g} in {len(self.ratios)} runs"


@dataclass(frozen=True)
class NotMeasured:
    """A row without figures, and what is needed to have them."""

    what: str
    needs: str


Row = Claim | NotMeasured


def without_gpu(what: str) -> list[Row]:
    """The row of a benchmark that needs a GPU, where there is none; empty where there is one."""
    try:
        import torch
    except ImportError:
        return [NotMeasured(what, "torch")]
    return [] if torch.cuda.is_available() else [NotMeasured(what, "a CUDA device")]


LEAST_RUNS, MOST_RUNS = 3, 7
MOST_SECONDS = 300.0
"""No row is measured again once its benchmark has been measured again for so long."""
STILL = 0.02
"""How much the median may move in the last two runs, as a part of it, to stand still."""


def steadied(
    first: list[Row], measure: Callable[[], list[Row]], most_seconds: float = MOST_SECONDS
) -> list[Row]:
    """`first`, in which a row that is missed has the medians of more runs of `measure`.

    It is measured until the median of its ratio stands still, seven times at most; on a busy
    machine fewer, for no run begins after `most_seconds`. A row that is missed by then is missed,
    and says its spread.
    """
    runs = [first]
    ends = time.monotonic() + most_seconds
    while len(runs) < MOST_RUNS and not all(_stands_still(place, runs) for place in _missed(first)):
        if time.monotonic() >= ends:
            break
        runs.append(measure())
    if len(runs) == 1:
        return first
    missed = set(_missed(first))
    return [_median(_at(place, runs)) if place in missed else row
            for place, row in enumerate(first)]  # fmt: skip


def _missed(rows: list[Row]) -> list[int]:
    return [place for place, row in enumerate(rows) if isinstance(row, Claim) and not row.met]


def _at(place: int, runs: Sequence[list[Row]]) -> list[Claim]:
    return [row for run in runs if isinstance(row := run[place], Claim)]


def _stands_still(place: int, runs: Sequence[list[Row]]) -> bool:
    if len(runs) < LEAST_RUNS:
        return False
    last, *others = (_median(_at(place, runs[: len(runs) - fewer])).ratio for fewer in range(3))
    return all(abs(last - other) <= STILL * abs(last) for other in others)


def _median(claims: list[Claim]) -> Claim:
    """The run with the median ratio; of an even number, the worse of the two in the middle."""
    ordered = sorted(claims, key=lambda claim: claim.ratio, reverse=claims[0].faster)
    return replace(ordered[len(ordered) // 2], ratios=tuple(claim.ratio for claim in claims))


def peak_mib(work: Callable[[], object]) -> float:
    """How far the resident memory rises above what it was, at most, while `work` runs."""
    status = Path("/proc/self/status")

    def kib(field: str) -> int:
        match = re.search(rf"{field}:\s*(\d+)", status.read_text())
        assert match is not None
        return int(match[1])

    Path("/proc/self/clear_refs").write_text("5")
    before = kib("VmRSS")
    work()
    return (kib("VmHWM") - before) / 1024


# A process that is started has the memory of the one that starts it, until it runs its program, and
# that counts for its peak.
_SMALL_PROCESS = """
import os, subprocess, sys
process = subprocess.Popen(sys.argv[1:])
_, status, usage = os.wait4(process.pid, 0)
print(usage.ru_maxrss)
sys.exit(os.waitstatus_to_exitcode(status) != 0)
"""


def output_and_peak(command: Sequence[str | os.PathLike[str]]) -> tuple[str, float]:
    """What a command prints, and its peak of resident memory in MiB.

    Raises subprocess.CalledProcessError where it fails.
    """
    small = [sys.executable, "-S", "-c", _SMALL_PROCESS, *(os.fspath(part) for part in command)]
    printed = subprocess.run(small, stdout=subprocess.PIPE, text=True, check=True).stdout
    *lines, kib = printed.splitlines()
    return "\n".join(lines), int(kib) / 1024


def nanoseconds_a_call(function: Callable[[], object], calls: int) -> float:
    """Time of one call of a function that does its work ``calls`` times, in ns."""
    began = time.perf_counter_ns()
    function()
    return (time.perf_counter_ns() - began) / calls


def take_turns(
    sides: Mapping[str, Callable[[], object]],
    *,
    calls: int,
    rounds: int,
    between: Callable[[], object] | None = None,
) -> dict[str, float]:
    """Median ns a call of each side, measured in turns: A B C A B C ...

    ``between`` runs after each measurement and is not timed.
    """
    times: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(rounds):
        for name, function in sides.items():
            times[name].append(nanoseconds_a_call(function, calls))
            if between is not None:
                between()
    return {name: statistics.median(values) for name, values in times.items()}
