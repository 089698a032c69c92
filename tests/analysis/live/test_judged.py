"""`live` judges the newest rows of a long run: they are read as they are in the whole run."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from my_utils.analysis.live import judged
from my_utils.analysis.live.judged import Judged
from my_utils.analysis.verdict.load import load_run

from ...conftest import RunPython

pytestmark = pytest.mark.no_torch

STEPS = 900
PROGRAM = f"""
import sys
from my_utils import GlobalLogger, MyTimer, _core
GlobalLogger().setup("logs", 0, 1, console=False, max_csv_bytes=int(sys.argv[1]))
_core.log_event("my_utils.sync", "INSTANT", 0, "stage=backward,kind=ddp,members=0-3")
timer = MyTimer(tag="train")
for step in range({STEPS}):
    timer.set_step(step)
    for stage in ("input", "forward", "backward"):
        with timer.time_stage(stage):
            pass
    timer.step()
GlobalLogger().close()
"""


@pytest.mark.parametrize("part_bytes", [1 << 30, 60_000], ids=["one file", "many parts"])
@pytest.mark.parametrize("newest_bytes", [1, 100_000, 200_000, 1 << 30])
def test_the_newest_rows_are_those_of_the_whole_run(
    part_bytes: int, newest_bytes: int, tmp_path: Path, run_python: RunPython
) -> None:
    assert run_python("-c", PROGRAM, str(part_bytes)).returncode == 0
    whole = load_run(tmp_path / "logs")
    part = load_run(tmp_path / "logs", newest_bytes=newest_bytes)
    assert whole.steps.tolist() == list(range(STEPS))
    count = len(part.steps)
    assert part.steps.tolist() == list(range(STEPS - count, STEPS))
    written = sum(csv.stat().st_size for csv in (tmp_path / "logs").glob("*.csv"))
    expected = STEPS * min(max(newest_bytes, 64 << 10) / written, 1.0)
    assert abs(count - expected) <= 0.2 * expected + 2
    assert part.stages == whole.stages and part.sync_points == whole.sync_points
    np.testing.assert_array_equal(part.totals[:, 1:], whole.totals[:, STEPS - count + 1 :])


def test_a_run_of_more_bytes_is_judged_by_its_newest(
    tmp_path: Path, run_python: RunPython, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run_python("-c", PROGRAM, str(1 << 30)).returncode == 0
    monkeypatch.setattr(judged, "BYTES_MAX", 100_000)
    verdict = Judged([str(tmp_path / "logs")], None).verdict()
    assert verdict is not None and verdict.status != "not judged"
    assert (verdict.last_step, verdict.judged_steps < STEPS / 2) == (STEPS - 1, True)


def test_nothing_is_judged_before_a_row_is_written(tmp_path: Path) -> None:
    assert Judged([str(tmp_path)], None).verdict() is None
