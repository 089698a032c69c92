"""How long the memory of this host, or of this process's cgroup, will last while it keeps filling.

Growth is judged by the rule of `analysis/verdict/memory`, over samples of a day at most. What the
page cache holds counts as free.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import NamedTuple

SAMPLE_S = 30.0
SAMPLES_LEAST, SAMPLES_MAX = 40, 256
DAY_S = 86_400.0
GROWN_LEAST = 0.01  # of the limit


class Fill(NamedTuple):
    """In bytes."""

    used: float
    limit: float


class Left(NamedTuple):
    """free: bytes. rate: bytes a second that it falls by. seconds: until none is left."""

    free: float
    rate: float
    seconds: float


def read_fill() -> Fill | None:
    """Of the two, where less is left. None where the system does not say."""
    fills = []
    with contextlib.suppress(OSError, ValueError, KeyError):
        rows = (line.split() for line in Path("/proc/meminfo").read_text().splitlines())
        known = {row[0]: 1024.0 * int(row[1]) for row in rows}
        total = known["MemTotal:"]
        fills.append(Fill(total - known["MemAvailable:"], total))
    with contextlib.suppress(OSError, ValueError, KeyError):  # "max" is no number
        own = Path("/proc/self/cgroup").read_text().partition("0::/")[2].partition("\n")[0]
        cgroup = Path("/sys/fs/cgroup", own)
        limit = float((cgroup / "memory.max").read_text())
        stat = dict(line.split() for line in (cgroup / "memory.stat").read_text().splitlines())
        used = float((cgroup / "memory.current").read_text()) - float(stat["inactive_file"])
        fills.append(Fill(used, limit))
    return min(fills, key=lambda fill: fill.limit - fill.used, default=None)


class HostMemory:
    """Not thread-safe."""

    def __init__(self, sample_s: float = SAMPLE_S) -> None:
        self._sample_s = sample_s
        self._samples: list[tuple[float, Fill]] = []

    def look(self, now_s: float, fill: Fill | None = None) -> None:
        """Takes a sample if one is due. now_s: of any clock that never goes back. fill: by default
        as it is now."""
        if self._samples and now_s - self._samples[-1][0] < self._sample_s:
            return
        fill = fill or read_fill()
        if fill is not None:
            self._samples.append((now_s, fill))
        if len(self._samples) <= SAMPLES_MAX:
            return
        if self._sample_s * SAMPLES_MAX < DAY_S:  # over twice the time, with half as many
            self._samples = self._samples[::2]
            self._sample_s *= 2
        else:
            del self._samples[0]

    def left(self) -> Left | None:
        """None where it does not keep filling."""
        if len(self._samples) < SAMPLES_LEAST:
            return None
        import numpy as np

        from ...verdict.memory import find_growth

        used = np.array([[fill.used for _, fill in self._samples]])
        newest = self._samples[-1][1]
        if used[0, -1] - used[0, 0] < GROWN_LEAST * newest.limit:
            return None
        growth = find_growth({"rss_bytes": used}, np.arange(used.size))
        if growth is None:
            return None
        took_s = self._samples[-1][0] - self._samples[0][0]
        rate = growth.bytes_a_step * (used.size - 1) / took_s
        free = max(newest.limit - newest.used, 0.0)
        return Left(free, rate, free / rate)
