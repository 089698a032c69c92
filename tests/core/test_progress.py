"""Progress: a bar on a terminal, lines elsewhere, and never a byte on standard output."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from my_utils.core.progress import Progress

from ..conftest import ROOT, RunPython
from ..support.on_terminal import on_terminal, plain

pytestmark = pytest.mark.no_torch

# It works until its standard input ends.
WORK = """
import sys
from my_utils.core.progress import Progress
with Progress("work", quiet="--quiet" in sys.argv, ticking=True) as shown:
    shown.phase("reading", 8, "files")
    shown.advance(2)
    sys.stdin.read()
print("result")
"""


@pytest.mark.slow
def test_a_pipe_gets_lines_while_nothing_is_reported() -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", WORK], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True, env={"PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert process.stderr is not None
    said = [process.stderr.readline() for _ in range(2)]
    out, _ = process.communicate("")
    for line in said:
        assert re.fullmatch(r"work: reading, 2 of 8 files \(25 %\), \d+ s\n", line)
    assert out == "result\n"


def test_quick_work_and_quiet_work_say_nothing(run_python: RunPython) -> None:
    for words in ([], ["--quiet"]):
        done = run_python("-c", WORK, *words, stdin=subprocess.DEVNULL)
        assert (done.stdout, done.stderr) == ("result\n", "")


def test_results_stand_above_the_bar(tmp_path: Path) -> None:
    program = """
from my_utils.core.progress import Progress
with Progress("work", 2, "ranks") as shown:
    shown.advance()
    shown.print("rank 0: done")
    shown.advance()
print("the end")
"""
    for columns in (40, 80):
        status, shown = on_terminal(["-c", program], tmp_path, with_output=True, columns=columns)
        assert status == 0
        assert "work:" in plain(shown)
        for line in ("rank 0: done", "the end"):  # after the line of the bar is wiped
            assert f"\x1b[2K{line}\r\n" in shown


def test_what_it_says(capsys: pytest.CaptureFixture[str]) -> None:
    shown = Progress("trace", 12 << 20, "bytes")
    assert repr(shown) == "Progress('trace: 0 B of 12.00 MiB (0 %)')"
    with shown:
        shown.show(3 << 20, 12 << 20)
        assert repr(shown) == "Progress('trace: 3.00 MiB of 12.00 MiB (25 %)')"
        shown.show(5, 0)
        shown.phase("writing")
        assert repr(shown) == "Progress('trace: writing')"
    assert capsys.readouterr() == ("", "")
