"""Asks the ranks of a running job for their Python stacks, through its control file.

A thread of the job that needs no lock of the interpreter reads the file and answers, also where the
training hangs.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path

from ...core.arguments import check_seconds
from ...core.bounded_read import read_whole
from ...core.ranges import as_ranges, ranges_text
from ...core.ranks import check_ranks
from ...core.run_files.ranks import find_ranks
from ...profilers.capture.on_demand.control_file import add_stacks, captures_folder, new_id
from .record import RECORD_BYTES_MAX, StackRecord, read_record

WAIT_S = 5.0  # the file is polled twice a second; network file systems add their delay
POLL_S = 0.05
HZ = 100
HZ_MAX = 1000
SECONDS_MAX = 600.0


@dataclass
class Stacks:
    """The responses. missing: why a rank has no record, by its label."""

    records: list[StackRecord] = field(default_factory=list)
    missing: dict[str, str] = field(default_factory=dict)


def request_stacks(
    log_dir: str | os.PathLike[str],
    *,
    ranks: int | Collection[int] | None = None,
    seconds: float = 0.0,
    hz: int = HZ,
) -> str:
    """Writes a request; returns its id. seconds: 0 for one dump, else the length of a profile of
    `hz` samples a second. OSError when the file cannot be written."""
    chosen = check_ranks("ranks", ranks)
    if seconds:
        check_seconds("seconds", seconds, 0, SECONDS_MAX)
    if not isinstance(hz, int) or not 1 <= hz <= HZ_MAX:
        raise ValueError(f"hz must be an int from 1 to {HZ_MAX}, not {hz!r}")
    id = new_id()
    asked = "*" if chosen is None else ranges_text(as_ranges(chosen))
    add_stacks(Path(log_dir), f"{id} {asked} {round(seconds * 1000)} {hz}")
    return id


def wait_for_stacks(
    log_dir: str | os.PathLike[str],
    id: str,
    ranks: Collection[int] | None = None,
    timeout_s: float = WAIT_S,
) -> Stacks:
    """Waits for the records of the ranks that live, each from its first process. A rank that has
    not answered in time is in `missing`."""
    folder = captures_folder(log_dir)
    found = [rank for rank in find_ranks(os.fspath(log_dir), only=ranks).ranks if rank.worker == 0]
    alive = {rank.label for rank in found if rank.alive}
    result = Stacks(missing={rank.label: "its process is gone" for rank in found if not rank.alive})
    end = time.monotonic() + timeout_s
    while True:
        waiting = alive - {record.label for record in result.records}
        for label in sorted(waiting):
            _take(folder / f"{id}__{label}.stacks.json", label, result)
        waiting = alive - {record.label for record in result.records} - result.missing.keys()
        if not waiting or time.monotonic() >= end:
            break
        time.sleep(POLL_S)
    late = "no answer in time; is MY_UTILS_CAPTURE=0 set in its environment?"
    result.missing.update(dict.fromkeys(waiting, late))
    result.records.sort(key=lambda record: record.rank)
    return result


def _take(path: Path, label: str, result: Stacks) -> None:
    try:
        record = read_record(read_whole(path, RECORD_BYTES_MAX, "an answer")[0])
    except FileNotFoundError:
        return
    except (OSError, ValueError) as error:
        result.missing[label] = f"its answer cannot be read: {error}"
        return
    if record.refused:
        result.missing[label] = record.refused
    else:
        result.records.append(record)
        if record.kind == "dump":  # it was shown; profiles stay
            with contextlib.suppress(OSError):  # it is gone, or in a folder of another user
                path.unlink()


def job_stacks(
    log_dir: str | os.PathLike[str],
    *,
    ranks: int | Collection[int] | None = None,
    timeout_s: float = WAIT_S,
) -> Stacks:
    """One dump of the ranks of a running job: request and wait."""
    chosen = check_ranks("ranks", ranks)
    return wait_for_stacks(log_dir, request_stacks(log_dir, ranks=chosen), chosen, timeout_s)
