"""Attempts are counted in the log directory, and are at least what a launcher says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ...conftest import RunPython

pytestmark = pytest.mark.no_torch

PROGRAM = """
from my_utils import GlobalLogger
GlobalLogger().setup("logs", console=False)
"""


@pytest.mark.parametrize(
    ("restarts", "attempts"),
    [
        (["0", "1", "2"], [1, 2, 3]),
        (["3", None, "1"], [4, 5, 6]),
        ([None, "5", "5"], [1, 6, 7]),
        (["-1", "many", "70000"], [1, 2, 65535]),
    ],
)
def test_attempts(
    run_python: RunPython, tmp_path: Path, restarts: list[str | None], attempts: list[int]
) -> None:
    for restart in restarts:
        env = {} if restart is None else {"TORCHELASTIC_RESTART_COUNT": restart}
        done = run_python("-c", PROGRAM, env=env)
        assert done.returncode == 0, done.stderr
    text = (tmp_path / "logs" / "profile_rank_0.csv").read_text(encoding="utf-8")
    assert [int(number) for number in re.findall(r"attempt=(\d+)", text)] == attempts
