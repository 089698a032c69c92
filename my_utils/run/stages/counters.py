"""The memory counter at the end of an iteration; batches are counted in C."""

from __future__ import annotations

import os
import sys
import time

from ... import _core

_PAUSE_NS = 10_000_000
_PAGE = os.sysconf("SC_PAGE_SIZE")


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


def rss_bytes() -> int:
    """Resident memory; 0 if the system does not say."""
    try:
        file = os.open("/proc/self/statm", os.O_RDONLY | os.O_CLOEXEC)
        try:
            return int(os.read(file, 128).split()[1]) * _PAGE
        finally:
            os.close(file)
    except (OSError, ValueError, IndexError):
        return 0


def allocated_bytes() -> int:
    """What torch's allocator has given out on the current CUDA device; 0 without one."""
    cuda = sys.modules.get("torch.cuda")
    if cuda is None or not cuda.is_initialized():
        return 0
    return int(cuda.memory_allocated())
