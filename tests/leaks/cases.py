"""The leak cases of `my_utils._core`: at least one for every entry point.

A case is a generator: it sets up, yields the callable to repeat, and cleans up. `@case` names the
entry points that the callable runs through: `function`, `Type` for a constructor, `Type.method`.
Paths that end in an exception deserve a case of their own.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from my_utils import _core

from ..support.run_csv import HEADER
from .harness import case


@case("FormatError")
def format_error(folder: Path) -> Iterator[Callable[[], object]]:
    yield lambda: _core.FormatError("line 1: no comma")


@case("open_output", "close_output", repeat=20)
def move_an_output(folder: Path) -> Iterator[Callable[[], object]]:
    def action() -> None:
        for rank in (0, 1):
            _core.open_output(log_dir=folder, rank=rank)
            _core.log_event("event", "INSTANT")

    yield action
    _core.close_output()


@case("open_output", repeat=200)
def open_an_output_in_vain(folder: Path) -> Iterator[Callable[[], object]]:
    (folder / "profile_rank_0.csv").write_text("no profile\n")

    def action() -> None:
        with contextlib.suppress(_core.FormatError):
            _core.open_output(log_dir=folder)
            raise AssertionError("a file that is not a profile CSV was opened")
        for arguments in ({"log_dir": "/proc/nowhere"}, {"io": "fast"}, {"rank": -1}, {"kind": 1}):
            with contextlib.suppress(OSError, ValueError, TypeError):
                _core.open_output(**arguments)
                raise AssertionError(f"{arguments} was taken")

    yield action


@case("set_time_offset_ns", repeat=2000)
def shift_the_time(folder: Path) -> Iterator[Callable[[], object]]:
    _core.open_output(kind="null")

    def action() -> None:
        _core.set_time_offset_ns(10**9)
        _core.set_time_offset_ns(0)

    yield action
    _core.open_output(kind="memory")


DEAD_PROCESS = """
import os, sys
from my_utils import _core
_core.open_output(log_dir=sys.argv[1])
timer = _core.Timer("train")
timer.start("open")
with timer.time_stage("drained"):
    pass
timer.step()
with timer.time_stage("in the journal"):
    pass
os._exit(0)
"""


def dead_journal(folder: Path) -> Path:
    """The journal that a process left behind which ended without a word."""
    subprocess.run([sys.executable, "-c", DEAD_PROCESS, str(folder)], check=True)
    (journal,) = folder.glob("*.journal")
    return journal


@case("recover_rows", repeat=100)
def recover_rows_of_the_dead(folder: Path) -> Iterator[Callable[[], object]]:
    journal = dead_journal(folder)
    yield lambda: _core.recover_rows(journal)


@case("read_journal", repeat=100)
def read_journal_of_the_dead(folder: Path) -> Iterator[Callable[[], object]]:
    journal = dead_journal(folder)
    yield lambda: _core.read_journal(journal)


STEPS = """
import sys
from my_utils import GlobalLogger, MyTimer
GlobalLogger().setup(sys.argv[1], console=False)
timer = MyTimer()
for step in range(250):
    timer.set_step(step)
    timer.start("forward")
    timer.stop("forward")
    timer.step()
"""


@case("read_windows", repeat=200)
def read_windows_of_a_run(folder: Path) -> Iterator[Callable[[], object]]:
    subprocess.run([sys.executable, "-c", STEPS, str(folder)], check=True)
    whole = folder / "rank_0.100.windows"
    torn = folder / "torn.windows"
    torn.write_bytes(whole.read_bytes()[:-30])
    files = [(str(whole), 0), (str(torn), 0), (str(whole), 300), (str(folder / "missing"), 0)]

    def action() -> None:
        assert len(_core.read_windows(files)["windows"]) > 0
        with contextlib.suppress(TypeError):
            _core.read_windows([(str(whole), "all")])  # type: ignore[list-item]

    yield action


@case("give_back_memory", repeat=100)
def give_memory_back(folder: Path) -> Iterator[Callable[[], object]]:
    yield _core.give_back_memory


@case("read_stages", "read_notes", "read_run_metadata", repeat=200)
def read_stages_and_notes_of_parts(folder: Path) -> Iterator[Callable[[], object]]:
    rows = (
        HEADER + '1,,h,0,my_utils.sync,INSTANT,,"tid=7,stage=a"\n'
        '1,,h,0,a,START,,"node_id=1"\n2,,h,0,a,END,1,"node_id=1"\n'
    ).encode()
    good, left_open = ("good", -1, -1, rows, True), ("open", -1, -1, rows[:-30], True)
    foreign = ("foreign", -1, -1, b"a,b\n1,2\n", True)

    def action() -> None:
        for read in (_core.read_stages, _core.read_notes, _core.read_run_metadata):
            found = read([good, left_open, foreign])
            assert (len(found["errors"]), len(found["notes"])) == (1, 2)
            with contextlib.suppress(TypeError):
                read([good, ("name", 3)])  # type: ignore[list-item]

    yield action


@case(
    *("StageRows", "StageRows.__iter__", "StageRows.__next__", "StageRows.bytes_read"), repeat=200
)
def stage_rows_of_a_part(folder: Path) -> Iterator[Callable[[], object]]:
    rows = (
        b'1,,h,0,a,START,,"node_id=1"\n1,,h,0,my_utils.process,INSTANT,,"attempt=1"\n'
        b'torn\n2,,h,x,a,END,1,"node_id=1,tag=t,cuda_ms=1"\n2,,h,0,a,END,,\n'
    )

    def action() -> None:
        found = _core.StageRows(("rows", -1, -1, rows, False))
        assert len(list(found)) == 5
        assert found.bytes_read == len(rows)
        assert len(list(_core.StageRows(("rows", -1, -1, rows, False), "t"))) == 3
        next(_core.StageRows(("rows", -1, -1, rows, False)))
        with contextlib.suppress(_core.FormatError):
            _core.StageRows(("rows", -1, -1, rows, True))
        with contextlib.suppress(TypeError):
            _core.StageRows(("rows", -1, -1, rows, False), 3)  # type: ignore[arg-type]
        with contextlib.suppress(TypeError):
            _core.StageRows(("rows", 3))  # type: ignore[arg-type]
        with contextlib.suppress(OSError):
            list(_core.StageRows(("rows", 1 << 20, -1, None, False)))

    yield action


@case("recover_rows", "read_journal", repeat=200)
def journals_that_are_none(folder: Path) -> Iterator[Callable[[], object]]:
    foreign = folder / "foreign.journal"
    foreign.write_bytes(bytes(9000))

    def action() -> None:
        for function in (_core.recover_rows, _core.read_journal):
            for path, error in ((foreign, _core.FormatError), (folder / "gone", OSError)):
                with contextlib.suppress(error):
                    function(path)
                    raise AssertionError(f"{path} was read")

    yield action


TRACE_ROWS = HEADER.encode() + (
    b'1750000000.5,,h,0,a,START,,"node_id=1,parent_id=0,tid=7,k=v"\n'
    b'1750000000.6,,h,0,a,END,,"node_id=1,parent_id=0,tid=7,k=v"\n'
    b'1750000000.7,,h,0,open,START,,"node_id=2,parent_id=0,tid=7"\n'
    b'1750000000.8,,h,0,alone,END,,"node_id=3,parent_id=0,tid=8"\n'
    b'1750000000.9,,h,0,loss,COUNTER,,"tid=7,value=1.5"\n'
    b"not a row\n"
)


@case(
    "TraceJob",
    "TraceJob.bytes_read",
    "TraceJob.cancel",
    "TraceJob.convert",
    "TraceJob.finish",
    "TraceJob.set_base",
    "trace_first_ns",
    repeat=100,
)
def traces_in_every_format(folder: Path) -> Iterator[Callable[[], object]]:
    part = ("rows", -1, -1, TRACE_ROWS, True)
    foreign = ("foreign", -1, -1, b"no,header\n", True)
    rows = (
        ("START", 1_750_000_000 * 10**9, b"a", b"node_id=1,tid=7,cat="),
        ("INSTANT", -(1 << 63), b"b", b""),
    )
    wrong: list[Any] = [3, (3,), ((1, 2),), (("NONE", 1, b"", b""),)]

    def action() -> None:
        for name in ("json", "seed", "perfetto"):
            job = _core.TraceJob(-1, name, True)
            job.set_base(_core.trace_first_ns(part))
            job.convert([part, foreign], 3, steps=(0, 5), name_filter=lambda text: text != "x")
            assert job.bytes_read > 0
            assert job.convert([rows, ()], 3, foreign="trace")["open"] == 1
            for one in wrong:
                with contextlib.suppress(TypeError, ValueError):
                    job.convert([one], 3, foreign="trace")
            job.finish()
        stopped = _core.TraceJob(-1, "json")
        stopped.cancel()
        with contextlib.suppress(RuntimeError):
            stopped.convert([part], 0)
        with contextlib.suppress(TypeError):
            stopped.convert([None], 0)  # type: ignore[list-item]
        with contextlib.suppress(_core.FormatError):
            _core.trace_first_ns(foreign)

    yield action
