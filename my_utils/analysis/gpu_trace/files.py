"""The breakdowns of the traces that a user named."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from ...core.reader_process import ReaderError, Readers, unpacked_bytes
from ...trace.chrome_json import TraceFileError
from ..replay.torch_trace import left_out_text
from .breakdown import Breakdown, break_down
from .nsys import is_database

BESIDE_ABOVE = 16 << 20  # bytes of JSON; fewer are read before another process is up


def breakdowns_in(paths: Sequence[str]) -> tuple[list[Breakdown], list[str]]:
    """Those of the devices in these traces, and what of them is not there, a sentence each. A large
    trace, and any database, is read by a process with limits of time and memory."""
    found: list[Breakdown] = []
    problems: list[str] = []
    with Readers(breakdowns_or_reason, 1, bounded=True) as readers:
        for path in paths:
            try:
                is_beside = is_database(path) or unpacked_bytes(path) >= BESIDE_ABOVE
                one = readers.read(path) if is_beside else breakdowns_or_reason(path)
                if isinstance(one, str):
                    problems.append(one)
                else:
                    devices = cast("list[Breakdown]", one)
                    found += devices
                    left_out = devices[0].left_out if devices else 0
                    problems += [f"{path}: {left_out_text(left_out)}"] if left_out else []
            except (OSError, ReaderError) as error:
                problems.append(f"{path}: {error}")
    return found, problems


def breakdowns_or_reason(path: str) -> list[Breakdown] | str:
    """As `break_down`; or why there are none, with the path, for a file of another kind."""
    try:
        return break_down(path)
    except TraceFileError as error:
        return str(error)
    except ValueError as error:
        return f"{path}: {error}"
