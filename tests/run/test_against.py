"""Two commands in turns: `my_utils run --repeat N --against 'COMMAND' -- COMMAND`."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from ..conftest import ROOT, RunPython

pytestmark = pytest.mark.no_torch

# A training that writes what it would have recorded, and the order in which it ran.
TRAINING = f"""
import os, sys
sys.path.insert(0, {str(ROOT)!r})
from pathlib import Path
from tests.support.planted_runs import Run
factor, fails_at = float(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else ""
folder = Path(os.environ["MY_UTILS_RUN_DIR"])
with open("order", "a") as file:
    file.write(folder.name + "\\n")
if folder.name == fails_at:
    sys.exit(7)
number = sum(map(ord, folder.name))
Run(ranks=1, steps=40, seed=number).slower(factor, "forward").write(folder)
"""


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train it.py").write_text(TRAINING)
    return "train it.py"


def test_two_commands_run_in_turns_and_are_compared(
    script: str, tmp_path: Path, run_python: RunPython
) -> None:
    done = run_python(
        "-m", "my_utils.run", "-o", "out", "--repeat", "3", "--against", f"'{script}' 1.2",
        script, "1",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "order").read_text().split() == ["A-1", "B-1", "B-2", "A-2", "A-3", "B-3"]
    assert sorted(os.listdir("out")) == ["A-1", "A-2", "A-3", "B-1", "B-2", "B-3"]
    assert re.search(
        r"^B is 6\.\d % slower \(± .*3 × 3 runs\): \+6\.\d of it in `iter/forward`", done.stderr,
        re.MULTILINE,
    ), done.stderr  # fmt: skip
    again = re.search(r"^again: (my_utils diff .*)$", done.stderr, re.MULTILINE)
    assert again is not None and "out/A-* --with " in again[1]


def test_a_run_that_fails_stops_it_and_is_named(
    script: str, tmp_path: Path, run_python: RunPython
) -> None:
    done = run_python(
        "-m", "my_utils.run", "-o", "out", "--repeat", "3", "--against", f"'{script}' 1 B-2",
        script, "1",
    )  # fmt: skip
    assert done.returncode == 7
    assert (tmp_path / "order").read_text().split() == ["A-1", "B-1", "B-2"]
    assert "out/B-2 ended with status 7: no more runs, no comparison" in done.stderr
    assert "slower" not in done.stderr


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (["--repeat", "3"], "--repeat and --against need each other"),
        (["--against", "x"], "--repeat and --against need each other"),
        (["--repeat", "1", "--against", "x"], "must be 2 or more, not 1"),
        (["--repeat", "x", "--against", "x"], "must be 2 or more, not x"),
        (["--repeat", "2", "--against", "'x"], "No closing quotation"),
        (["--repeat", "2", "--against", ""], "must name a command"),
    ],
)
def test_wrong_usage(run_python: RunPython, given: list[str], says: str) -> None:
    done = run_python("-m", "my_utils.run", *given, "train.py")
    assert done.returncode == 2 and says in done.stderr


def test_it_needs_what_is_recorded(script: str, run_python: RunPython) -> None:
    environment = {**os.environ, "MY_UTILS_RUN": "0", "PYTHONPATH": str(ROOT)}
    done = run_python(
        "-m", "my_utils.run", "--repeat", "2", "--against", "true", script, "1", env=environment
    )
    assert done.returncode == 2 and "MY_UTILS_RUN=0 records nothing" in done.stderr
