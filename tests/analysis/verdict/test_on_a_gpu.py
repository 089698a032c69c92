"""Trainings on a real GPU whose cause is known, under `my_utils run`."""

from __future__ import annotations

from pathlib import Path

import pytest

from my_utils.analysis.report.bars import mean_step
from my_utils.analysis.report.judged import judged_steps
from my_utils.analysis.verdict.device import by_the_device
from my_utils.analysis.why import judge, load_run

from ...conftest import RunPython

pytestmark = [pytest.mark.gpu, pytest.mark.slow, pytest.mark.timeout(300)]

TRAINING = Path(__file__).with_name("gpu_training.py")


@pytest.mark.parametrize(
    ("cause", "kind"),
    [
        ("input", "input"),
        ("copies", "h2d"),
        ("launches", "launch"),
        ("compute", "compute"),
        ("reading the loss", "compute"),
    ],
)
def test_the_cause_is_named(cause: str, kind: str, run_python: RunPython, tmp_path: Path) -> None:
    command = ["-m", "my_utils", "run", "-o", str(tmp_path / "logs"), str(TRAINING), cause]
    done = run_python(*command)
    assert done.returncode == 0, done.stderr
    run = load_run(tmp_path / "logs")
    verdict = judge(run)
    assert verdict.findings[0].kind == kind, verdict.lines()
    assert verdict.untimed_share < 0.1, verdict.lines()
    seen = by_the_device(run)
    assert seen is not None
    parts = {part.name: part.ms for part in mean_step(judged_steps(seen, verdict))}
    if kind == "compute":
        assert parts["forward"] + parts["backward"] > 0.9 * sum(parts.values()), parts
    if cause == "reading the loss":
        assert run.gpu is not None
        assert sorted(run.gpu.error_ns[0])[len(run.steps) // 2] < 100_000
