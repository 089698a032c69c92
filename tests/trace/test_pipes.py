"""Profile CSVs that come through a pipe: read once and whole, and left at a signal."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from my_utils import _core
from my_utils.csv2trace import csv_to_trace

from ..conftest import ROOT
from ..support.run_csv import HEADER

pytestmark = pytest.mark.no_torch

ROWS = HEADER + "".join(
    f"17000000{i:02}.5,x,0,{i},load,{kind},{1000 if kind == 'END' else ''},node_id={i}\n"
    for i in range(40)
    for kind in ("START", "END")
)


def test_a_named_pipe_is_converted_whole(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "input")
    program = "import sys; open('input', 'w').write(sys.argv[1])"
    with subprocess.Popen([sys.executable, "-c", program, ROWS], cwd=tmp_path):
        summary = csv_to_trace([str(tmp_path / "input")], str(tmp_path / "out.json"))
    assert (summary.rows, summary.slices) == (80, 40)
    events = json.loads((tmp_path / "out.json").read_text())["traceEvents"]
    assert sum(event.get("name") == "load" for event in events) == 40


OTHER = {"ph": "X", "name": "other", "pid": 7, "tid": 7, "ts": 5_000_000, "dur": 1000}


def convert(
    folder: Path, words: list[str], **options: Any
) -> tuple[int, str, list[dict[str, Any]]]:
    """Status, messages, and events of `csv2trace`."""
    command = [sys.executable, "-m", "my_utils.csv2trace", *words, "-o", "out.json", "--quiet"]
    done = subprocess.run(
        command, cwd=folder, text=True, stderr=subprocess.PIPE, check=False,
        env=os.environ | {"PYTHONPATH": str(ROOT)}, **options,
    )  # fmt: skip
    out = folder / "out.json"
    events = json.loads(out.read_text())["traceEvents"] if out.exists() else []
    out.unlink(missing_ok=True)
    return done.returncode, done.stderr, events


def starts_us(events: list[dict[str, Any]], name: str) -> list[float]:
    return [event["ts"] for event in events if event.get("name") == name and event["ph"] in "BX"]


@pytest.mark.parametrize("good_from", [0, 3])
def test_a_trace_without_the_runs_clock_begins_with_the_run_of_a_pipe(
    tmp_path: Path, good_from: int
) -> None:
    """As it does with that of a file. Rows that are cut off, and are not from any time, do not
    count as its beginning."""
    rows = HEADER + "no row at all\n" * good_from + ROWS.removeprefix(HEADER)
    (tmp_path / "run.csv").write_text(rows)
    (tmp_path / "other.json").write_text(json.dumps({"traceEvents": [OTHER]}))
    of_file = convert(tmp_path, ["run.csv", "--merge", "other.json"])
    of_pipe = convert(tmp_path, ["-", "--merge", "other.json"], input=rows)
    os.mkfifo(tmp_path / "fifo")
    program = "import sys; open('fifo', 'w').write(open('run.csv').read())"
    with subprocess.Popen([sys.executable, "-c", program], cwd=tmp_path):
        of_fifo = convert(tmp_path, ["fifo", "--merge", "other.json"])
    for status, err, events in (of_file, of_pipe, of_fifo):
        assert status == 3 and "states no time of the run's clock; drawn from the" in err
        assert len(starts_us(events, "load")) == 40
        assert starts_us(events, "other") == starts_us(events, "load")[:1]


def test_one_is_left_out_where_the_run_of_a_pipe_does_not_begin(tmp_path: Path) -> None:
    (tmp_path / "other.json").write_text(json.dumps({"traceEvents": [OTHER]}))
    rows = HEADER + "no row at all\n" * 100_000 + ROWS.removeprefix(HEADER)
    status, err, events = convert(tmp_path, ["-", "--merge", "other.json"], input=rows)
    assert status == 3 and "the beginning of the run is not known; left out" in err
    assert len(starts_us(events, "load")) == 40 and not starts_us(events, "other")


@pytest.mark.parametrize(
    "content",
    [
        {"traceEvents": []},
        {"traceEvents": [{"ph": "M", "name": "process_name", "pid": 1, "args": {"name": "x"}}]},
        {"traceEvents": [{}], "distributedInfo": {"rank": 0}},
        [],
    ],
)
def test_a_merged_trace_without_events_is_said(tmp_path: Path, content: object) -> None:
    (tmp_path / "other.json").write_text(json.dumps(content))
    (tmp_path / "run.csv").write_text(ROWS)
    status, err, events = convert(tmp_path, ["run.csv", "--merge", "other.json"])
    assert (status, len(starts_us(events, "load"))) == (3, 40)
    assert err == "my_utils trace: warning: other.json: holds no events to draw\n"


class Alarm(Exception):
    pass


@pytest.fixture
def alarm() -> Iterator[None]:
    """The handler of SIGALRM raises Alarm."""

    def handler(number: int, frame: FrameType | None) -> None:
        raise Alarm

    before = signal.signal(signal.SIGALRM, handler)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


def first_ns(part: _core._TracePart) -> None:
    _core.trace_first_ns(part)


def stage_table(part: _core._TracePart) -> None:
    _core.read_stages([part])


def stage_rows(part: _core._TracePart) -> None:
    list(_core.StageRows(part))


def trace(part: _core._TracePart) -> None:
    _core.TraceJob(-1, "json").convert([part], 0)


@pytest.mark.parametrize("read", [first_ns, stage_table, stage_rows, trace])
@pytest.mark.parametrize("begun", ["", HEADER + "1700000000.5,x,0,"])
@pytest.mark.usefixtures("alarm")
def test_a_handler_that_raises_ends_the_wait(
    read: Callable[[_core._TracePart], None], begun: str
) -> None:
    read_fd, write_fd = os.pipe()
    os.write(write_fd, begun.encode())
    signal.setitimer(signal.ITIMER_REAL, 0.1)
    with pytest.raises(Alarm):
        read(("pipe", read_fd, -1, None, True))
    os.close(read_fd)
    os.close(write_fd)


@pytest.mark.usefixtures("alarm")
def test_rows_are_whole_after_a_handler_that_returns() -> None:
    signal.signal(signal.SIGALRM, lambda number, frame: os.write(write_fd, ROWS.encode()))
    read_fd, write_fd = os.pipe()
    signal.setitimer(signal.ITIMER_REAL, 0.1)
    rows = _core.StageRows(("pipe", read_fd, -1, None, True))
    assert [row[0] for _, row in zip(range(80), rows, strict=False)] == ["START", "END"] * 40
    os.close(read_fd)
    os.close(write_fd)


def test_a_cancelled_conversion_leaves_a_silent_pipe() -> None:
    from concurrent.futures import ThreadPoolExecutor

    read_fd, write_fd = os.pipe()
    job = _core.TraceJob(-1, "json")
    with ThreadPoolExecutor(1) as pool:
        conversion = pool.submit(lambda: job.convert([("pipe", read_fd, -1, None, True)], 0))
        job.cancel()
        with pytest.raises(RuntimeError, match="pipe: the reading was stopped"):
            conversion.result(60)
    os.close(read_fd)
    os.close(write_fd)
