"""The share of the peak that a run reaches, where its script says what a step needs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import my_utils
from my_utils.analysis.report import analyze
from my_utils.analysis.why import judge, load_run

from ...conftest import RunPython
from ...support.run_csv import RankCsv

pytestmark = pytest.mark.no_torch

STEPS, STEP_MS = 60, 100.0
SCRIPT = """
import time, my_utils
from my_utils import GlobalLogger, MyTimer
GlobalLogger().setup("logs", rank=0, world_size=1, console=False)
my_utils.set_model_flops(3e12, peak_flops=1e15)
timer = MyTimer(tag="run")
for step in range(40):
    timer.set_step(step)
    with timer.time_stage("forward"):
        time.sleep(0.004)
GlobalLogger().close()
"""


def run_of(folder: Path, *said: dict[str, object] | None) -> Path:
    """A rank for each; all steps take 100 ms."""
    for rank, pairs in enumerate(said):
        one = RankCsv(rank, len(said))
        one.process()
        one.note("run", {"device": "cpu", "attempt": 1, "wrappers": "none"})
        one.note("workload", {"num_workers": 2})
        if pairs is not None:
            one.note("workload", pairs)
        for step in range(STEPS):
            one.step(step, step * STEP_MS, [("forward", 0.0, 40.0), ("backward", 40.0, 100.0)])
        one.write(folder / "logs")
    return folder / "logs"


def test_the_share_of_all_peaks(tmp_path: Path) -> None:
    """2 and 4 TFLOPs in 100 ms are 60 TFLOP/s, of 100 and 200 at most."""
    logs = run_of(
        tmp_path,
        {"flops_a_step": 2e12, "peak_flops": 1e14},
        {"flops_a_step": 4e12, "peak_flops": 2e14},
    )
    verdict = judge(load_run(logs))
    data = verdict.as_data()
    assert data["flops_a_second"] == pytest.approx(6e13, rel=1e-6)
    assert data["mfu"] == pytest.approx(0.2, rel=1e-6)
    assert any("MFU 20.0 %" in line for line in verdict.lines())


def test_the_page_of_the_report_has_it(tmp_path: Path) -> None:
    logs = run_of(tmp_path, {"flops_a_step": 2e12, "peak_flops": 1e14})
    found = analyze(logs)
    assert json.loads(found.to_json())["verdict"]["mfu"] == pytest.approx(0.2)
    found.save_html(tmp_path / "report.html")
    assert "MFU 20.0 %" in (tmp_path / "report.html").read_text()


@pytest.mark.parametrize(
    "said",
    [
        [None],
        [{"flops_a_step": 2e12, "peak_flops": 1e14}, None],
        [{"flops_a_step": "nan", "peak_flops": 1e14}],
        [{"flops_a_step": "many"}],
        [{"flops_a_step": -1}],
        [{"peak_flops": 1e14}],
    ],
)
def test_what_is_not_known_is_not_shown(
    said: list[dict[str, object] | None], tmp_path: Path
) -> None:
    verdict = judge(load_run(run_of(tmp_path, *said)))
    data = verdict.as_data()
    assert data["flops_a_second"] is data["mfu"] is None
    assert not any("MFU" in line or "FLOP" in line for line in verdict.lines())


def test_no_peak_is_guessed(tmp_path: Path) -> None:
    verdict = judge(load_run(run_of(tmp_path, {"flops_a_step": 2e12})))
    data = verdict.as_data()
    assert data["mfu"] is None and data["flops_a_second"] == pytest.approx(2e13, rel=1e-6)
    assert any("20 TFLOP/s" in line for line in verdict.lines())


def test_a_share_above_the_peak_is_said_to_be_wrong(tmp_path: Path) -> None:
    verdict = judge(load_run(run_of(tmp_path, {"flops_a_step": 2e12, "peak_flops": 1e12})))
    assert any("MFU 2000.0 %, more than the peak_flops" in line for line in verdict.lines(200))


def test_a_script_says_it(run_python: RunPython, tmp_path: Path) -> None:
    done = run_python("-c", SCRIPT, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    data = json.loads(run_python("-m", "my_utils", "why", "logs", "--json", cwd=tmp_path).stdout)
    assert data["flops_a_second"] == pytest.approx(3e15 / data["step_ms"], rel=1e-4)
    assert data["mfu"] == pytest.approx(3 / data["step_ms"], rel=1e-4)


@pytest.mark.parametrize(
    ("arguments", "kind", "said"),
    [
        ({"flops_a_step": 0}, ValueError, "flops_a_step must be above 0 and finite, not 0"),
        ({"flops_a_step": float("inf")}, ValueError, "flops_a_step must be above 0 and finite"),
        ({"flops_a_step": True}, TypeError, "flops_a_step must be an int or a float"),
        ({"flops_a_step": "6e12"}, TypeError, "flops_a_step must be an int or a float"),
        ({"flops_a_step": 1, "peak_flops": -1.0}, ValueError, "peak_flops must be above 0"),
    ],
)
def test_wrong_figures(arguments: dict[str, Any], kind: type[Exception], said: str) -> None:
    with pytest.raises(kind, match=said):
        my_utils.set_model_flops(**arguments)
