"""The cells of the cookbook in the kernel of a notebook, and what is displayed below them."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pytest

from my_utils.analysis.why import judge, load_run

from ..conftest import ROOT
from .blocks import blocks_of

nbclient = pytest.importorskip("nbclient", reason="nbclient is not installed")
nbformat = pytest.importorskip("nbformat", reason="nbformat is not installed")
pytest.importorskip("ipykernel", reason="ipykernel is not installed")
pytest.importorskip("torch", reason="torch is not installed")

pytestmark = pytest.mark.slow

AUTO = "import my_utils; my_utils.auto()"
TRAIN = """
import torch
model = torch.nn.Linear(16, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(60):
    model(torch.ones(4, 16)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""
LOOP = """
import time
for step in range(60):
    timer.set_step(step)
    with timer.time_stage("input"):
        time.sleep(0.004)
    with timer.time_stage("forward"):
        time.sleep(0.001)
    timer.step()
"""


def cell_of_the_cookbook(words: str) -> str:
    (found,) = (
        block.code
        for block in blocks_of(ROOT / "docs/cookbook.md")
        if block.language == "python" and words in block.code
    )
    return found


JUDGE = cell_of_the_cookbook('judge(load_run("logs"))')
RECORD = cell_of_the_cookbook('setup("logs/first", console=False)')


def run_cells(folder: Path, monkeypatch: pytest.MonkeyPatch, *cells: str) -> list[list[Any]]:
    """The outputs of each cell, of a new kernel; an exception in one raises."""
    monkeypatch.setenv("IPYTHONDIR", str(folder / "ipython"))
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(folder / "runtime"))
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    client = nbclient.NotebookClient(
        notebook, timeout=500, kernel_name="python3", resources={"metadata": {"path": str(folder)}}
    )
    client.execute(env={**os.environ, "PYTHONPATH": str(ROOT)})
    return [cell.outputs for cell in notebook.cells]


def displayed(outputs: list[Any]) -> dict[str, str]:
    (output,) = outputs
    assert output.output_type == "execute_result"
    return dict(output.data)


def test_a_run_that_auto_recorded_is_judged_below_its_cell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    *_, last = run_cells(tmp_path, monkeypatch, AUTO, TRAIN, JUDGE)
    data = displayed(last)
    text = data["text/plain"]
    judged = re.search(r" (\d+) steps, 1 rank", text.splitlines()[0])
    assert judged and 20 < int(judged[1]) < 60, text  # without those of the warm-up
    assert text.splitlines()[0].split("  ")[0] in data["text/html"]
    assert data["text/html"].startswith('<pre style="border-left:4px solid #')


def test_a_timed_loop_shows_its_verdict_and_the_next_run_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = RECORD.replace("...", LOOP, 1)
    again = record.replace("logs/first", "logs/second").replace("sleep(0.001)", "sleep(0.05)")
    monkeypatch.chdir(tmp_path)
    outputs = run_cells(tmp_path, monkeypatch, record, JUDGE, again, JUDGE)
    assert outputs[0] == outputs[2] == []  # console=False
    first, second = displayed(outputs[1]), displayed(outputs[3])
    assert first["text/plain"].startswith("BOUND BY INPUT on rank 0"), first
    assert not second["text/plain"].startswith("BOUND BY INPUT"), second
    assert first["text/plain"].splitlines() == judge(load_run("logs/first")).lines()
