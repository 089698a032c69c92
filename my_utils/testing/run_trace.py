"""The whole test run as a trace: a track for each worker, a slice for each test and its phases.

The times are those of pytest's reports, so workers do nothing for it. They become a profile CSV,
and that a trace.
"""

from __future__ import annotations

import csv
import itertools
import os
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from operator import itemgetter
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

_Row = tuple[int, str, str, str, str]  # Unix ns, name, type, duration, metadata


@dataclass(frozen=True)
class _Phase:
    """name: "setup", "call" or "teardown", or "crashed" for a worker of xdist. subtests: of a
    call."""

    name: str
    outcome: str
    begin_ns: int
    end_ns: int
    subtests: tuple[_Phase, ...] = ()


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
        self._subtests: dict[tuple[str, str], list[_Phase]] = {}  # of a call that is not over
        self._free_ns: dict[str, int] = {}  # by worker, the end of its last phase
        self._outcome = ""

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Of this process, or of a worker of xdist. A worker that crashed says no times."""
        worker = report.node.gateway.id if hasattr(report, "node") else "main"
        place = worker, report.nodeid
        if hasattr(report, "context"):  # a SubtestReport; that of its call follows
            self._subtests.setdefault(place, []).append(_subtest(report))
            return
        stop_ns = round(report.stop * 1e9) or time.time_ns()
        begin_ns = round(report.start * 1e9) or self._free_ns.get(worker, stop_ns)
        # pytest takes begins from one clock and durations from another: phases may overlap a bit.
        begin_ns = max(begin_ns, self._free_ns.get(worker, 0))
        self._free_ns[worker] = end_ns = max(stop_ns, begin_ns)
        name = str(report.when).replace("???", "crashed")
        subtests = _within(self._subtests.pop(place, []), begin_ns, end_ns)
        phase = _Phase(name, report.outcome, begin_ns, end_ns, subtests)
        self._phases.setdefault(place, []).append(phase)

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
                for at_ns, name, kind, duration, metadata in sorted(
                    self._rows(), key=itemgetter(0)
                ):
                    time = f"{at_ns // 10**9}.{at_ns % 10**9:09d}"
                    row = (time, "-", host_name(), _NO_STEP, name, kind, duration, metadata)
                    table.writerow(row)
            csv_to_trace(folder, self.path)

    def _rows(self) -> Iterator[_Row]:
        workers = sorted({worker for worker, _ in self._phases})
        first = min((one[0].begin_ns for one in self._phases.values()), default=0)
        process = {"pid": os.getpid(), "rank": current_rank(), "world_size": world_size(),
                   "attempt": 1, "host": host_name(), "label": "pytest"}  # fmt: skip
        yield _note("process", first, process)
        for tid, worker in enumerate(workers):
            yield _note("thread", first, {"tid": tid, "thread_name": worker})
        nodes = itertools.count(1)
        for (worker, nodeid), phases in self._phases.items():
            tid, test = workers.index(worker), next(nodes)
            worst = max((one.outcome for one in phases), key=lambda one: _WEIGHTS.get(one, -1))
            whole = _Phase(nodeid, worst, phases[0].begin_ns, phases[-1].end_ns)
            begin, end = _slice(whole, test, 0, tid)
            yield begin
            for phase in phases:
                node = next(nodes)
                yield from _slice(phase, node, test, tid)
                for one in phase.subtests:
                    yield from _slice(one, next(nodes), node, tid)
            yield end


# Of other outcomes, such as "rerun" of pytest-rerunfailures, only the phase says it.
_WEIGHTS = {"passed": 0, "skipped": 1, "failed": 2}


def _subtest(report: Any) -> _Phase:
    """Of pytest, or of pytest-subtests before pytest 9."""
    pairs = ", ".join(f"{key}={value}" for key, value in report.context.kwargs.items())
    name = " ".join(filter(None, (report.context.msg, pairs and f"({pairs})"))) or "subtest"
    return _Phase(name, report.outcome, round(report.start * 1e9), round(report.stop * 1e9))


def _within(phases: list[_Phase], begin_ns: int, end_ns: int) -> tuple[_Phase, ...]:
    """Subtests inside of their call. They may be nested, but as phases may overlap a bit."""
    found: list[_Phase] = []
    for one in sorted(phases, key=lambda one: (one.begin_ns, -one.end_ns)):
        begin, end = max(one.begin_ns, begin_ns), min(one.end_ns, end_ns)
        for before in found:
            if begin < before.end_ns < end:
                begin = before.end_ns
        found.append(replace(one, begin_ns=begin, end_ns=max(begin, end)))
    return tuple(found)


def _slice(phase: _Phase, node: int, parent: int, tid: int) -> tuple[_Row, _Row]:
    ids = {"node_id": node, "parent_id": parent, "tid": tid}
    milliseconds = f"{(phase.end_ns - phase.begin_ns) / 1e6:.6f}"
    metadata = metadata_text({**ids, "outcome": phase.outcome, "test": phase.name})
    return (
        (phase.begin_ns, phase.name, "START", "", metadata_text(ids)),
        (phase.end_ns, phase.name, "END", milliseconds, metadata),
    )


def _note(name: str, at_ns: int, pairs: Mapping[str, object]) -> _Row:
    return at_ns, f"my_utils.{name}", "INSTANT", "", metadata_text(pairs)
