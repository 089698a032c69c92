"""The calls of collectives that a rank has recorded."""

from __future__ import annotations

from pathlib import Path

import pytest

from my_utils.analysis.verdict.load import load_run

from ...conftest import RunPython

pytestmark = pytest.mark.no_torch

LOOP = """
from my_utils import _core
from my_utils.logger import GlobalLogger

class Run(_core.Timer):
    __slots__ = ()

GlobalLogger().setup("logs", console=False)
calls, run = Run(tag="collectives"), Run(tag="run")
for step in range(8):
    run.set_step(step)
    calls.set_step(step)
    calls.start("all_gather_object 0")
    calls.start("all_gather 0")
    calls.stop("all_gather 0")
    calls.stop("all_gather_object 0")
    run.start("forward")
    calls.start("send 1")
    calls.stop("send 1")
    run.stop("forward")
    run.step()
"""


def test_a_call_within_another_one_is_left_out(run_python: RunPython, tmp_path: Path) -> None:
    done = run_python("-c", LOOP)
    assert done.returncode == 0, done.stderr
    (rank,) = load_run(str(tmp_path / "logs")).recorded
    assert [one.kind for one in rank.calls] == ["all_gather_object", "send"] * 8
