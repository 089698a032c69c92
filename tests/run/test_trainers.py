"""Trainers of others: their iterations, and the stages inside their ways of stepping."""

from __future__ import annotations

import importlib.util
from collections import Counter
from pathlib import Path

import pytest

from tests.run.test_stages_of_scripts import check_exclusive, result, rows_of, run, stages

pytestmark = pytest.mark.timeout(300)

LATER = ("input", "forward", "loss", "backward", "optimizer")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "needs", "backwards", "first_forward"),
    [
        ("hf_trainer", "transformers", 2, 1),
        ("accelerated", "accelerate", 2, 1),
        ("lightning_fit", "lightning", 1, 2),  # the module's own call is never seen
    ],
)
def test_each_iteration_has_its_stages(
    script: str, needs: str, backwards: int, first_forward: int, tmp_path: Path
) -> None:
    if importlib.util.find_spec(needs) is None:
        pytest.skip(f"needs {needs}")
    run("truth", tmp_path / "truth", f"{script}.py")
    run("bare", tmp_path / "bare", f"{script}.py")
    folder = tmp_path / "truth" / script
    truth = result(folder)
    assert truth["hash"] == result(tmp_path / "bare" / script)["hash"]
    rows = rows_of(folder)
    [end] = [row for row in rows if row.name == "my_utils.run_end"]
    assert int(end.metadata["iterations"]) == truth["iterations"]
    recorded = stages(rows)
    check_exclusive(recorded)
    calls = Counter((row.step, row.name) for row in recorded)
    for step in range(first_forward, truth["iterations"]):
        assert calls[step, "backward"] == calls[step, "forward"] == backwards, step
        assert all(calls[step, name] for name in LATER), step
