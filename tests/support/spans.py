"""What a training script says of itself: its stages, taken by hand with perf_counter.

with span("forward"):
    out = model(x)
iterated()
"""

from __future__ import annotations

import resource
import time
from collections import defaultdict

Spans = dict[str, list[tuple[float, bool]]]


class Span:
    """The time between the end of `__enter__` and the begin of `__exit__`, and whether the kernel
    put the thread aside meanwhile or close to it."""

    __slots__ = ("_began", "_switches", "_times")

    def __init__(self, times: list[tuple[float, bool]] | None) -> None:
        self._times = times
        self._switches = _switches()

    def __enter__(self) -> None:
        self._began = time.perf_counter()

    def __exit__(self, *exception: object) -> None:
        ended = time.perf_counter()
        if self._times is not None:
            self._times.append((ended - self._began, _switches() == self._switches))


def _switches() -> int:
    return resource.getrusage(resource.RUSAGE_THREAD).ru_nivcsw


class Truth:
    """What the script says of itself, taken by hand with perf_counter."""

    def __init__(self, takes_times: bool) -> None:
        self.spans: Spans = defaultdict(list)
        self.iterations = 0
        self._takes_times = takes_times

    def span(self, name: str) -> Span:
        return Span(self.spans[name] if self._takes_times else None)

    def iterated(self) -> None:
        self.iterations += 1
        if self.iterations == 1:
            # Step 0 has no forward, and its last step has the setting up of the files in it.
            self.spans.clear()


_truth = Truth(False)


def tell(takes_times: bool) -> Truth:
    """Begins anew. Without times a span does nothing."""
    global _truth
    _truth = Truth(takes_times)
    return _truth


def span(name: str) -> Span:
    """What should become a stage."""
    return _truth.span(name)


def iterated() -> None:
    """An iteration has ended."""
    _truth.iterated()
