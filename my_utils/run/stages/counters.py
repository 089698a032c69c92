"""The memory counter at the end of an iteration; batches are counted in C."""

from __future__ import annotations

import time

from ... import _core
from .memory import allocated_bytes, rss_bytes

_PAUSE_NS = 10_000_000


class MemoryCounter:
    """Writes the memory of the process at most every 10 ms. Not thread-safe."""

    __slots__ = ("_next_ns",)

    def __init__(self) -> None:
        self._next_ns = 0

    def write(self, iteration: int) -> None:
        """The memory after a step of `iteration`."""
        now = time.monotonic_ns()
        if now < self._next_ns:
            return
        self._next_ns = now + _PAUSE_NS
        allocated = allocated_bytes()
        text = f"rss_bytes={rss_bytes()}"
        text = f"{text},allocated_bytes={allocated}" if allocated else text
        if iteration >= 0:
            _core.log_event("memory", "COUNTER", iteration, text)
