"""What the performance tracker reads from psutil: the memory of this process's children, and the
memory that the machine has left.

To find the children psutil scans all processes, about 30 µs each; hence `Seldom`.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from .sources import Figure, Probe

if TYPE_CHECKING:
    import psutil


CHILDREN = (Figure("children", "rss_bytes", "bytes"), Figure("children", "count", "processes"))
AVAILABLE = Figure("host", "available_bytes", "bytes")


def psutil_probes() -> list[Probe]:
    """Empty where psutil is not installed."""
    try:
        import psutil
    except ImportError:
        return []
    parent = psutil.Process()
    return [
        Probe(CHILDREN, Seldom(lambda: _memory_of(parent.children(recursive=True)), 2).read),
        Probe((AVAILABLE,), Seldom(lambda: (psutil.virtual_memory().available,), 1).read),
    ]


def _memory_of(children: Sequence[psutil.Process]) -> tuple[float, float]:
    """The sum of their RSS, and how many have any: what ended and waits for its parent has none."""
    sizes = [_rss(child) for child in children]
    return sum(sizes), sum(size > 0 for size in sizes)


def _rss(child: psutil.Process) -> int:
    import psutil

    try:
        return int(child.memory_info().rss)
    except psutil.Error:  # it has ended meanwhile
        return 0


class Seldom:
    """Reads once a second at most, and takes a thousandth of a core at most; else NaN."""

    EVERY_S = 1.0
    SHARE = 0.001

    def __init__(self, read: Callable[[], Sequence[float]], width: int) -> None:
        self._read = read
        self._unknown = (math.nan,) * width
        self._due = 0.0

    def read(self) -> Sequence[float]:
        now = time.monotonic()
        if now < self._due:
            return self._unknown
        began = time.thread_time()
        values = self._read()
        took = time.thread_time() - began
        self._due = now + max(self.EVERY_S, took / self.SHARE)
        return values
