"""What is said, while it runs, of a process that has torch and is not recorded."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from my_utils.run.environment import SITE_FOLDER, reach
from my_utils.run.unreached import Lookout, unreached

from ..conftest import ROOT

TRAINS = "import torch; print('ready', flush=True); input()"


def started(*options: str, path: str | None) -> subprocess.Popen[str]:
    """A training below this process that has imported torch. path: its PYTHONPATH."""
    variables = reach({**os.environ, "PYTHONPATH": str(ROOT)})
    variables.pop("PYTHONPATH")
    if path is not None:
        variables["PYTHONPATH"] = path
    process = subprocess.Popen(
        [sys.executable, *options, "-c", TRAINS],
        env=variables, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    return process


@pytest.mark.parametrize(
    ("options", "path", "says"),
    [
        ([], "src", "it was started with PYTHONPATH=src; start it with PYTHONPATH=src:$PYTHONPATH"),
        ([], None, "it was started with no PYTHONPATH; start it with the PYTHONPATH of `my_utils"),
        (["-E"], SITE_FOLDER, "leave out Python's options -I, -E and -S"),
    ],
)
def test_a_training_that_dropped_the_path(options: list[str], path: str | None, says: str) -> None:
    with started(*options, path=path) as process:
        (line,) = unreached(os.getpid())
        process.communicate("\n")
    assert line.startswith(f"nothing is recorded of process {process.pid} ({sys.executable} ")
    assert says in line and "my_utils.auto()" in line
    assert list(unreached(os.getpid())) == []


def test_it_is_said_while_the_command_runs(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    report = tmp_path / "report"
    report.touch()
    with started(path="src") as process:
        lookout = Lookout(report, after_s=0.01)
        lookout.join()
        process.communicate("\n")
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith(f"my_utils run: nothing is recorded of process {process.pid} ")


def test_a_command_that_reported_is_left_alone(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Beside it, as a helper of the script may, runs another process that has torch."""
    report = tmp_path / "report"
    report.write_text("python\ntorch\n")
    with started(path="src") as process:
        Lookout(report, after_s=0.01).join()
        process.communicate("\n")
    assert capfd.readouterr().err == ""
