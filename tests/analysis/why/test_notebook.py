"""What a cell of a notebook shows of a run and of its verdict."""

from __future__ import annotations

from pathlib import Path

import pytest

from my_utils.analysis.replay.inputs import verdict_of
from my_utils.analysis.why import ReplayVerdict, judge, load_run

from ...conftest import RunPython
from ...support.planted_runs import Run
from ..replay.test_read_nsys import database

CELLS = """
import my_utils; my_utils.auto()
import torch
model = torch.nn.Linear(16, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(60):
    model(torch.ones(4, 16)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()

from my_utils.analysis.why import judge, load_run

run = load_run("logs")
verdict = judge(run)
assert run.steps.tolist() == list(range(60)), run
assert verdict.judged_ranks == 1 and 0 < verdict.judged_steps < 60, verdict
assert repr(verdict) == "\\n".join(verdict.lines()), repr(verdict)
"""


@pytest.mark.slow
def test_after_auto_the_newest_run_is_judged(run_python: RunPython, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    (tmp_path / "logs").mkdir()
    Run(ranks=2, steps=60).write(tmp_path / "logs" / "older")
    done = run_python("-c", CELLS, cwd=tmp_path)
    assert done.returncode == 0, done.stderr


@pytest.mark.no_torch
def test_a_folder_of_runs_means_the_newest(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    Run(ranks=2, steps=60).slower(6, "data", rank=1).write(tmp_path / "logs" / "one")
    run = load_run(tmp_path / "logs")
    assert run.paths == [str(tmp_path / "logs" / "one")]
    assert repr(run).startswith("RunData(2 ranks, 60 steps, ") and len(repr(run)) < 300
    assert repr(judge(run)).splitlines() == judge(run).lines()


@pytest.mark.no_torch
def test_a_verdict_by_replay_shows_its_text_too(tmp_path: Path) -> None:
    verdict = verdict_of([database(tmp_path / "run.sqlite", slow=1, ranges=True)])
    assert isinstance(verdict, ReplayVerdict)
    assert repr(verdict) == str(verdict) == "\n".join(verdict.lines())
    assert verdict.lines()[0][:20] in verdict._repr_html_()
