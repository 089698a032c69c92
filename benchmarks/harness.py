"""Timing that holds on a noisy machine: the sides of a comparison take turns, medians are quoted.

A benchmark module has a function ``run(smoke: bool) -> list[Claim]``; ``python -m benchmarks``
finds it by its name, ``bench_*.py``.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Claim:
    """One row of the table.

    ``ours`` and ``peer`` are in ``unit``; the ratio is ours / peer, or peer / ours where ``faster``
    is set: how many times faster we are. ``bound`` is what the ratio must reach.
    """

    what: str
    ours: float
    peer_name: str
    peer: float
    unit: str
    bound: float
    faster: bool = False

    @property
    def ratio(self) -> float:
        above, below = (self.peer, self.ours) if self.faster else (self.ours, self.peer)
        return above / below if below else math.inf  # a difference of medians may be 0

    @property
    def met(self) -> bool:
        return self.ratio >= self.bound if self.faster else self.ratio <= self.bound

    @property
    def wanted(self) -> str:
        return f">= {self.bound:g} x faster" if self.faster else f"<= {self.bound:g} x"


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
