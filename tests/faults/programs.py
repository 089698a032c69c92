"""Programs that the tests run to their end, whatever that is, and what they leave."""

from __future__ import annotations

import subprocess
import textwrap
from collections import Counter
from pathlib import Path

from ..conftest import RunPython
from ..support import profile_rows
from ..support.profile_rows import Row

PREAMBLE = """
import faulthandler, os, resource, signal, sys, threading, time
from my_utils import _core
from my_utils.logger import GlobalLogger
from my_utils.utils import MyTimer
faulthandler.dump_traceback_later(100, exit=True)
logger = GlobalLogger()
timer = MyTimer()
def stages(count, name="stage", first=0):
    for step in range(first, first + count):
        timer.set_step(step)
        timer.start(name)
        timer.stop(name)
def timed(function, *arguments):
    began = time.perf_counter()
    function(*arguments)
    return time.perf_counter() - began
"""


def run(
    run_python: RunPython, text: str, *arguments: str, **options: object
) -> subprocess.CompletedProcess[str]:
    return run_python("-c", PREAMBLE + textwrap.dedent(text), *arguments, **options)


def finished(
    run_python: RunPython, text: str, *arguments: str, **options: object
) -> subprocess.CompletedProcess[str]:
    done = run(run_python, text, *arguments, **options)
    assert done.returncode == 0, f"{done.returncode}\n{done.stdout}\n{done.stderr}"
    assert "Traceback" not in done.stderr, done.stderr
    return done


def rows_of(path: Path) -> list[Row]:
    """Strictly parsed, without the tool's own rows."""
    text = path.read_text(encoding="utf-8")
    assert text.endswith("\n"), f"{path} ends in the middle of a row: {text[-100:]!r}"
    return profile_rows.of_stages(profile_rows.read(path))


def steps_of(path: Path, name: str = "stage") -> list[int]:
    """Of the finished stages of that name; their STARTs must be there as well."""
    rows = [row for row in rows_of(path) if row.name == name]
    kinds = Counter(row.kind for row in rows)
    assert kinds["START"] >= kinds["END"]
    return [row.step for row in rows if row.kind == "END"]


def told(done: subprocess.CompletedProcess[str], logs: Path, text: str) -> list[str]:
    """Lines with that text on stderr and in the text log."""
    log = logs / "rank_0.log"
    lines = log.read_text(encoding="utf-8").splitlines() if log.exists() else []
    return [line for line in done.stderr.splitlines() + lines if text in line]
