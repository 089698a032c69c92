"""The plain read of memory, the limit of whatever looks at every byte, and a block to read.

Where the block lies and how large its pages are decides how fast that is.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import platform
import statistics
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).resolve().parent.parent
HUGE = 1 << 21
OFFSET = 64
"""bytes into a page, where torch's own large blocks begin"""


def load_plain_read() -> Any:
    """Compiles ``plain_read.c`` for this processor."""
    library = ROOT / "build" / "bench" / "plain_read.so"
    library.parent.mkdir(parents=True, exist_ok=True)
    flags = ["-std=c11", "-O3", "-shared", "-fPIC"]
    if platform.machine() == "x86_64":
        flags.append("-mavx2")
    source = str(ROOT / "benchmarks" / "plain_read.c")
    own = library.with_suffix(f".{os.getpid()}")  # another rank may load the one that is there
    subprocess.run(["gcc", *flags, source, "-o", str(own)], check=True)
    own.replace(library)
    function = ctypes.CDLL(str(library)).plain_read
    function.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    function.restype = ctypes.c_uint64
    return function


def random_block(numbers: int, *, huge: bool) -> torch.Tensor:
    """Normal float32, `OFFSET` bytes into a page, on huge pages where wanted and allowed."""
    block = mmap.mmap(-1, numbers * 4 + 2 * HUGE)
    block.madvise(mmap.MADV_HUGEPAGE if huge else mmap.MADV_NOHUGEPAGE)
    address = ctypes.addressof(ctypes.c_char.from_buffer(block))
    x = torch.frombuffer(block, dtype=torch.float32, count=numbers, offset=-address % HUGE + OFFSET)
    return torch.randn(numbers, out=x)


def medians_in_turns(sides: dict[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Median processor time in ms of each side on this thread, which does all the work."""
    times: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(rounds):
        for name, work in sides.items():
            began = time.thread_time_ns()
            work()
            times[name].append((time.thread_time_ns() - began) / 1e6)
    return {name: statistics.median(values) for name, values in times.items()}
