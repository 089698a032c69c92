"""SIGKILL at random moments: what was finished is there once, what was open shows as open."""

from __future__ import annotations

import json
import signal
from collections import Counter
from pathlib import Path

import pytest

from ..conftest import RunPython
from .programs import run

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
