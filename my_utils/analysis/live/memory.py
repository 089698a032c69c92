"""How much memory a rank uses: of its process here, or as its profile CSV said last."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass

from ...core.ranks import process_began_s
from ...core.run_files.hosts import with_hosts
from ...core.run_files.run_metadata import read_run_metadata
from ...core.run_files.state import Rank

PAGE = os.sysconf("SC_PAGE_SIZE")
SAME_START_S = 1.0


@dataclass(frozen=True)
class Memory:
    """In bytes; None where nothing says it."""

    resident: int | None = None
    device: int | None = None


def read_memory(rank: Rank, log_dirs: Sequence[str]) -> Memory:
    """The resident memory of the rank's process, and what torch's allocator has given out on its
    device, which the rank writes down at the end of an iteration."""
    folders = with_hosts(log_dirs)
    profiles = (os.path.join(folder, f"profile_{rank.label}.csv") for folder in folders)
    last = next((one.last_values for one in map(read_run_metadata, profiles) if one.is_there), {})
    resident = _resident(rank)
    written = _bytes(last.get("memory.rss_bytes"))
    return Memory(written if resident is None else resident,
                  _bytes(last.get("memory.allocated_bytes")))  # fmt: skip


def _bytes(value: float | None) -> int | None:
    return int(value) if value is not None and math.isfinite(value) else None


def _resident(rank: Rank) -> int | None:
    """None where the process is not of this host and of this namespace of processes."""
    if rank.source != "journal" or not rank.alive or rank.began_s is None:
        return None
    try:
        with open(f"/proc/{rank.pid}/stat", "rb") as file:
            ticks = int(file.read().rpartition(b") ")[2].split()[19])
        began_s = process_began_s(ticks)
        if began_s is None or abs(began_s - rank.began_s) > SAME_START_S:
            return None
        with open(f"/proc/{rank.pid}/statm", "rb") as file:
            return int(file.read().split()[1]) * PAGE
    except (OSError, ValueError, IndexError):
        return None
