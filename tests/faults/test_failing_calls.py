"""Each call of the system that the C part makes fails once: the training ends as it would have."""

from __future__ import annotations

import errno
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from ..conftest import ROOT, RunPython

pytestmark = pytest.mark.no_torch

SHORT_WRITE, KILL_BEFORE, KILL_AFTER = -1, -2, -3
ERRORS = [
    errno.ENOSPC,
    errno.EDQUOT,
    errno.EIO,
    errno.ESTALE,
    errno.EROFS,
    errno.EMFILE,
    errno.EINTR,
    SHORT_WRITE,
]


def run_victims(
    run_python: RunPython,
    folder: Path,
    library: Path,
    which: str,
    timeout: float,
    errors: list[int] = ERRORS,
) -> dict[str, Any]:
    done = run_python(
        "-m", "tests.faults.fault_victims", str(folder), json.dumps(errors), which,
        env={"LD_PRELOAD": str(library), "PYTHONPATH": str(ROOT)}, timeout=timeout,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    figures: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    sys.stdout.write(f"{ {name: count for name, count in figures.items() if name != 'wrong'} }\n")
    return figures


@pytest.mark.slow
def test_a_call_that_fails_ends_no_training_and_loses_nothing_in_silence(
    run_python: RunPython, tmp_path: Path, failing_calls: Path
) -> None:
    figures = run_victims(run_python, tmp_path, failing_calls, "0", 300)
    assert figures["wrong"] == []
    assert figures["calls"] > 100 and figures["runs"] > figures["calls"] // 4


@pytest.mark.slow
def test_a_journal_that_cannot_be_removed_is_not_taken_over_twice(
    run_python: RunPython, tmp_path: Path, failing_calls: Path
) -> None:
    figures = run_victims(run_python, tmp_path, failing_calls, "u", 300)
    assert figures["wrong"] == []
    assert figures["runs"] > len(ERRORS) - 1


@pytest.mark.slow
def test_a_kill_before_or_after_a_call_loses_and_doubles_nothing(
    run_python: RunPython, tmp_path: Path, failing_calls: Path
) -> None:
    kills = [KILL_BEFORE, KILL_AFTER]
    figures = run_victims(run_python, tmp_path, failing_calls, "0", 300, kills)
    assert figures["wrong"] == []
    assert figures["kills"] > 20


@pytest.mark.thorough
@pytest.mark.timeout(7200)
def test_each_call_fails_with_each_error(
    run_python: RunPython, tmp_path: Path, failing_calls: Path
) -> None:
    errors = [*ERRORS, KILL_BEFORE, KILL_AFTER]
    figures = run_victims(run_python, tmp_path, failing_calls, "all", 7000, errors)
    assert figures["wrong"] == []
    assert figures["runs"] > 5 * figures["calls"] and figures["kills"] > 200
