"""SIGKILL at random moments: what was finished is there once, what was open shows as open."""

from __future__ import annotations

import json
import signal
from collections import Counter
from pathlib import Path

import pytest

from ..conftest import RunPython
from .programs import finished, rows_of, run

pytestmark = pytest.mark.long_file


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.thorough)])
def test_killed_runs_lose_nothing_and_double_nothing(
    run_python: RunPython, tmp_path: Path, seed: int
) -> None:
    """The engine's own test (test_faults.c) does the same 200 times without Python."""
    done = run_python(
        "-m", "tests.faults.kill_victims", "50", str(seed), str(tmp_path / "runs"), timeout=280
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    assert result["calls"] > 1000
    assert result["with_drops"] <= 5


def test_a_trace_of_a_killed_run_holds_what_it_finished_and_what_was_open(
    run_python: RunPython, tmp_path: Path
) -> None:
    killed = run(
        run_python,
        """
        logger.setup("logs", console=False)
        stages(30); timer.step()
        timer.start("open at the end")
        stages(30, first=30)
        os.kill(os.getpid(), signal.SIGKILL)
        """,
    )
    assert killed.returncode == -signal.SIGKILL
    before = {path: path.read_bytes() for path in (tmp_path / "logs").iterdir()}
    done = run_python("-m", "my_utils.csv2trace", "--recover", "logs", "-o", "trace.json")
    assert done.returncode == 0, done.stderr
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    names = Counter(event["name"] for event in events if event["ph"] == "X")
    assert names["stage"] == 60
    open_ones = [event["ph"] for event in events if event["name"] == "open at the end"]
    assert open_ones in (["B"], ["X"])
    assert {path: path.read_bytes() for path in (tmp_path / "logs").iterdir()} == before


ODD_NAMES = ("plain", "a\0b", "a\nb", "a\rb", "1\n5.5,x", 'a"b', " ", "é" * 127, "x" * 300)

# The journal of before the last write is put back: a kill between the rows and their commit.
KILLED_BEFORE_ITS_COMMIT = """
import glob, shutil
logger.setup("logs", console=False)
names = eval(sys.argv[1])
for name in names:
    stages(5, name)
    _core.log_event(name, "INSTANT", metadata="k=v")
(journal,) = glob.glob("logs/*.journal")
shutil.copy(journal, "before")
timer.step()
with open("before", "rb") as before, open(journal, "r+b") as file:
    file.write(before.read())
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_names_of_any_characters_are_there_once_after_a_kill_before_the_commit(
    run_python: RunPython, tmp_path: Path
) -> None:
    victim = run(run_python, KILLED_BEFORE_ITS_COMMIT, repr(ODD_NAMES))
    assert victim.returncode == -signal.SIGKILL, victim.stderr
    finished(run_python, "logger.setup('logs', console=False)")
    rows = rows_of(tmp_path / "logs/profile_rank_0.csv")
    ends = Counter(row.name for row in rows if row.kind == "END")
    assert sorted(ends.values()) == [5] * len(ODD_NAMES)
    assert sum(row.kind == "INSTANT" for row in rows) == len(ODD_NAMES)
