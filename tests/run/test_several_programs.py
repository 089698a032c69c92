"""One command that starts several programs, one after the other: the last one is judged."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from ..conftest import RunPython

TRAIN = """
import time
import torch

load = {load}
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), 0.01)
if load:
    model.load_state_dict(torch.load("best.pt"))
for step in range({steps}):
    time.sleep({seconds})
    if step == {save}:
        torch.save(model.state_dict(), "best.pt")
    model(torch.ones(4, 8)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""
LOOK = "import torch\nwith torch.no_grad():\n    torch.nn.Linear(8, 8)(torch.ones(4, 8))\n"
STEPS = 40


def test_the_last_one_that_trained_is_judged(run_python: RunPython, tmp_path: Path) -> None:
    pretrain = TRAIN.format(steps=3 * STEPS, seconds=0.005, load=False, save=2 * STEPS)
    (tmp_path / "pretrain.py").write_text(pretrain)
    tune = TRAIN.format(steps=STEPS, seconds=0.05, load=True, save=-1)
    (tmp_path / "tune.py").write_text(tune)
    (tmp_path / "look.py").write_text(LOOK)
    programs = "\n".join(f"{sys.executable} {name}.py" for name in ("pretrain", "tune", "look"))
    done = run_python("-m", "my_utils", "run", "-o", "run", "--", "sh", "-ec", programs)
    assert done.returncode == 0, done.stderr
    verdict = json.loads(run_python("-m", "my_utils", "why", "--json", "run").stdout)
    assert (verdict["attempts"], verdict["older_attempts"]) == (1, 1)
    assert verdict["last_step"] == STEPS - 1
    assert verdict["step_ms"] > 45
    assert "slower since" not in {finding["kind"] for finding in verdict["findings"]}
    left_out = "the steps of pretrain.py are left out: another program ran after it"
    assert left_out in verdict["notes"]
    report = json.loads(run_python("-m", "my_utils", "report", "--json", "run").stdout)
    assert report["run"]["steps"] == STEPS
    ledger = verdict["ledger"]  # of all time, and so of both
    assert [one["last_step"] for one in ledger["attempts"]] == [3 * STEPS - 1, STEPS - 1]
    assert [one["in_vain"] for one in ledger["attempts"]] == [None, None]
    assert sum(sum(row["ns"]) for row in ledger["rows"]) == ledger["wall_ns"][0]
