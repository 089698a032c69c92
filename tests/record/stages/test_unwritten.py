"""Timers that were used in vain say so once, at the end of the process."""

from __future__ import annotations

import pytest

from ...conftest import RunPython

pytestmark = pytest.mark.no_torch

STAGES = """
from my_utils import GlobalLogger, MyTimer
timer = MyTimer(tag="train")
def stages(count, first=0):
    for step in range(count):
        SET
        with timer.time_stage("iter"):
            pass
"""
STEPPED = STAGES.replace("SET", "timer.set_step(first + step)")
UNSTEPPED = STAGES.replace("SET", "pass")
SET_UP = "GlobalLogger().setup('logs', console=False); "

UNWRITTEN = "stages of the timer 'train' were recorded but never written"
NO_STEPS = "all rows of the timer 'train' have step 0"


@pytest.mark.parametrize(
    ("program", "said"),
    [
        (STEPPED + "stages(3)", [UNWRITTEN]),
        (STEPPED + "other = MyTimer(tag='train'); stages(3)", [UNWRITTEN]),
        (STEPPED, []),
        (STEPPED + "stages(3); timer.generate_report('', None)", []),
        (STEPPED + SET_UP + "stages(3)", []),
        (STEPPED + "stages(3); " + SET_UP, []),
        (STEPPED + SET_UP + "stages(3); GlobalLogger().close()", []),
        (STEPPED + SET_UP + "stages(1)", []),
        (UNSTEPPED + SET_UP + "stages(3)", [NO_STEPS]),
        (UNSTEPPED + SET_UP + "stages(1)", []),
        (UNSTEPPED + "stages(3)", [UNWRITTEN]),
        (STEPPED + "import os\nif os.fork() == 0: raise SystemExit\nos.wait(); stages(2)",
         [UNWRITTEN]),
    ],
)  # fmt: skip
def test_what_is_said(run_python: RunPython, program: str, said: list[str]) -> None:
    done = run_python("-c", program)
    assert done.returncode == 0, done.stderr
    log = run_python("-c", "import os; print(open('logs/rank_0.log').read() if "
                     "os.path.exists('logs') else '')").stdout  # fmt: skip
    lines = (done.stderr + log).splitlines()
    assert [text for text in (UNWRITTEN, NO_STEPS) for line in lines if text in line] == said
