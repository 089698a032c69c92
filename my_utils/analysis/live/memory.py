"""How much memory a rank uses: of its process here, or as its profile CSV said last."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass

from ...core.ranks import process_began_s
from ...core.run_files.state import Rank
from ...core.trusted_open import open_without_waiting

BYTES_READ = 64 << 10  # of the end of a profile CSV
PAGE = os.sysconf("SC_PAGE_SIZE")
SAME_START_S = 1.0

_COUNTER = re.compile(rb",memory,COUNTER,[^\n]*")
_RSS = re.compile(rb"\brss_bytes=(\d+)")
_DEVICE = re.compile(rb"\ballocated_bytes=(\d+)")


@dataclass(frozen=True)
class Memory:
    """In bytes; None where nothing says it."""

    resident: int | None = None
    device: int | None = None


def memory_of(rank: Rank, log_dirs: Sequence[str]) -> Memory:
    """The resident memory of the rank's process, and what torch's allocator has given out on its
    device, which the rank writes down at the end of an iteration."""
    rows = b"".join(_COUNTER.findall(_end_of_profile(rank, log_dirs))[-1:])
    resident = _resident(rank)
    return Memory(_number(_RSS, rows) if resident is None else resident, _number(_DEVICE, rows))


def _number(pattern: re.Pattern[bytes], text: bytes) -> int | None:
    found = pattern.search(text)
    return int(found[1]) if found else None


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


def _end_of_profile(rank: Rank, log_dirs: Sequence[str]) -> bytes:
    for folder in log_dirs:
        try:
            path = os.path.join(folder, f"profile_{rank.label}.csv")
            with open(path, "rb", opener=open_without_waiting) as file:
                size = file.seek(0, os.SEEK_END)
                file.seek(max(0, size - BYTES_READ))
                return file.read(BYTES_READ)
        except OSError:
            continue
    return b""
