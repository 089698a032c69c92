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

import pytest

from my_utils import _core
from my_utils.csv2trace import csv_to_trace

pytestmark = pytest.mark.no_torch

HEADER = "timestamp_unix,readable_time,machine_id,step,event_name,event_type,duration_ms,metadata\n"
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
        conversion = pool.submit(job.convert, [("pipe", read_fd, -1, None, True)], 0)
        job.cancel()
        with pytest.raises(RuntimeError, match="pipe: the reading was stopped"):
            conversion.result(60)
    os.close(read_fd)
    os.close(write_fd)
