"""The whole test run as a trace: a track for each worker, a slice for each test and its phases.

The times are those of pytest's reports, so workers do nothing for it. They become a profile CSV,
and that a trace.
"""

from __future__ import annotations

import csv
import os
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from ..core.outputs import check_suffix
from ..core.ranks import current_rank, host_name, world_size
from ..record.log.events import metadata_text
from ..trace.csv2trace import SUFFIXES, csv_to_trace
from .names import of_rank

_HEADER = (
    "timestamp_unix", "readable_time", "machine_id", "step", "event_name", "event_type",
    "duration_ms", "metadata",
)  # fmt: skip
_NO_STEP = -1
_TAG = "pytest"

_Row = tuple[int, str, str, str, str]  # Unix ns, name, type, duration, metadata


@dataclass(frozen=True)
class _Phase:
    """name: "setup", "call" or "teardown", or what xdist says of a worker that crashed."""

    name: str
    outcome: str
    begin_ns: int
    end_ns: int


class RunTrace:
    """A plugin that writes the trace when the session ends.

    path: its suffix says the format. ValueError for another suffix, or a folder that is not there.
        Under a launcher of several ranks each rank writes its own file.
    """

    def __init__(self, path: Path) -> None:
        check_suffix(path, list(SUFFIXES))
        if not path.parent.is_dir():
            raise ValueError(f"--my-utils-trace must be in a folder, not in {path.parent}")
        self.path = path.with_stem(path.stem + of_rank())
        self._phases: dict[tuple[str, str], list[_Phase]] = {}
        self._outcome = ""

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Of this process, or of a worker of xdist. A test that runs again is a slice again."""
        key = getattr(report, "worker_id", "main"), report.nodeid
        phases = self._phases.setdefault(key, [])
        begin_ns, end_ns = round(report.start * 1e9), round(report.stop * 1e9)
        phases.append(_Phase(report.when, report.outcome, begin_ns, end_ns))

    def pytest_sessionfinish(self) -> None:
        """A trace that cannot be written is said in the summary, and does not fail the tests."""
        try:
            self._write()
            self._outcome = f"trace of the tests: {self.path}"
        except (OSError, ValueError) as error:
            self._outcome = f"the trace of the tests was not written: {error}"

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        terminalreporter.write_line(f"my_utils: {self._outcome}")

    def _write(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, f"profile_rank_{current_rank()}.csv")
            with path.open("w", encoding="utf-8", errors="replace", newline="") as file:
                table = csv.writer(file, lineterminator="\n")
                table.writerow(_HEADER)
                for at_ns, name, kind, duration, metadata in sorted(self._rows()):
                    time = f"{at_ns // 10**9}.{at_ns % 10**9:09d}"
                    row = (time, "-", host_name(), _NO_STEP, name, kind, duration, metadata)
                    table.writerow(row)
            csv_to_trace(folder, self.path)

    def _rows(self) -> Iterator[_Row]:
        threads = {worker: at for at, worker in enumerate(sorted({key[0] for key in self._phases}))}
        first = min((one[0].begin_ns for one in self._phases.values()), default=0)
        process = {"pid": os.getpid(), "rank": current_rank(), "world_size": world_size(),
                   "attempt": 1, "host": host_name(), "label": _TAG}  # fmt: skip
        yield _note("process", first, process)
        for worker, tid in threads.items():
            yield _note("thread", first, {"tid": tid, "tag": _TAG, "thread_name": worker})
        node = 0
        for (worker, nodeid), phases in self._phases.items():
            ids = {"tid": threads[worker], "tag": _TAG}
            node += 1
            test = node
            worst = max((one.outcome for one in phases), key=_WORSE.index)
            whole = _Phase(nodeid, worst, phases[0].begin_ns, max(one.end_ns for one in phases))
            yield from _slice(whole, {"node_id": test, "parent_id": 0, **ids})
            for phase in phases:
                node += 1
                yield from _slice(phase, {"node_id": node, "parent_id": test, **ids})


_WORSE = ("passed", "skipped", "failed")


def _slice(phase: _Phase, ids: Mapping[str, object]) -> Iterator[_Row]:
    yield phase.begin_ns, phase.name, "START", "", metadata_text(ids)
    milliseconds = f"{(phase.end_ns - phase.begin_ns) / 1e6:.6f}"
    metadata = metadata_text({**ids, "outcome": phase.outcome, "test": phase.name})
    yield phase.end_ns, phase.name, "END", milliseconds, metadata


def _note(name: str, at_ns: int, pairs: Mapping[str, object]) -> _Row:
    return at_ns, f"my_utils.{name}", "INSTANT", "", metadata_text(pairs)
