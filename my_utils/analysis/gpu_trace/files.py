"""The breakdowns of the traces that a user named."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from ...core.reader_process import ReaderError, Readers, unpacked_bytes
from ...trace.chrome_json import TraceFileError
from .breakdown import Breakdown, breakdowns_of

BESIDE_ABOVE = 16 << 20  # bytes of JSON; fewer are read before another process is up


def breakdowns_in(paths: Sequence[str]) -> tuple[list[Breakdown], list[str]]:
    """Those of the devices in these traces, and why others have none, a sentence each. A large
    trace is read by a process with limits of time and memory."""
    found: list[Breakdown] = []
    problems: list[str] = []
    with Readers(breakdowns_of, 1, bounded=True) as readers:
        for path in paths:
            try:
                is_large = unpacked_bytes(path) >= BESIDE_ABOVE
                one = readers.read(path) if is_large else breakdowns_of(path)
                found += cast("list[Breakdown]", one)
            except TraceFileError as error:
                problems.append(str(error))
            except (OSError, ReaderError) as error:
                problems.append(f"{path}: {error}")
    return found, problems
