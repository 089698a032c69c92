"""Each iteration has its counters, and only what was trained with is in them; real runs."""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path

import pytest

from my_utils.analysis.why import load_run

from ..conftest import RunPython
from ..support.profile_rows import read
from ..support.variants import gate_runs

pytest.importorskip("torch", reason="torch is not installed")

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

EPOCHS, STEPS, SIZE = 4, 10, 8
TRAIN = f"""
import torch
from torch.utils.data import DataLoader, TensorDataset
training = DataLoader(TensorDataset(torch.ones({STEPS * SIZE}, 4)), batch_size={SIZE})
validation = DataLoader(TensorDataset(torch.ones(160, 4)), batch_size=32)
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range({EPOCHS}):
    BEGIN
    for (x,) in training:
        optimizer.zero_grad()
        model(x).sum().backward()
        optimizer.step()
    END
"""

CASES = {
    "one optimizer": {},
    "another optimizer later": {
        "BEGIN": "if epoch == 2: optimizer = torch.optim.Adam(model.parameters())",
    },
    "another optimizer, and the first one stays": {
        "BEGIN": "if epoch == 2: one, optimizer = optimizer, torch.optim.Adam(model.parameters())",
    },
    "a model and an optimizer that are new": {
        "BEGIN": "if epoch == 2:\n"
        "        model = torch.nn.Linear(4, 4)\n"
        "        optimizer = torch.optim.Adam(model.parameters())",
    },
    "gradients are off around the model in validation": {
        "END": "for (x,) in validation:\n        with torch.no_grad(): model(x)",
    },
    "validation of one batch": {
        "END": "with torch.no_grad(): model(next(iter(validation))[0])",
    },
}


@pytest.mark.parametrize("case", gate_runs(("validation of one batch",), CASES))
def test_each_iteration_has_its_own_samples(
    case: str, run_python: RunPython, tmp_path: Path
) -> None:
    script = TRAIN
    for name in ("BEGIN", "END"):
        script = re.sub(rf"\b{name}\b", CASES[case].get(name, "pass"), script)
    (tmp_path / "train.py").write_text(script)
    ran = run_python("-m", "my_utils", "run", "-o", "logs", "--quiet", "train.py", cwd=tmp_path)
    assert ran.returncode == 0, ran.stderr[-3000:]
    (profile,) = (tmp_path / "logs").glob("profile_rank_0.csv")
    samples: dict[int, int] = {}
    stages: dict[int, set[str]] = defaultdict(set)
    for row in read(profile):
        if row.kind == "COUNTER" and row.name == "batch":
            samples[row.step] = int(row.metadata["samples"])
        elif row.kind == "END" and row.step >= 0:
            stages[row.step].add(row.name)
    steps = range(EPOCHS * STEPS)
    assert samples == dict.fromkeys(steps, SIZE)
    assert sorted(stages) == list(steps)
    assert all("optimizer" in names for names in stages.values())


def test_an_evaluation_at_the_end_is_no_step(run_python: RunPython, tmp_path: Path) -> None:
    """Also where its rows were written before the last step was known to be the last one."""
    script = TRAIN.replace("BEGIN", "pass").replace("END", "pass") + (
        "import my_utils\n"
        "with torch.no_grad():\n"
        "    for (x,) in validation:\n"
        "        model(x)\n"
        "        my_utils.GlobalLogger().flush()\n"
    )
    (tmp_path / "train.py").write_text(script)
    ran = run_python("-m", "my_utils", "run", "-o", "logs", "--quiet", "train.py", cwd=tmp_path)
    assert ran.returncode == 0, ran.stderr[-3000:]
    steps = {row.step for row in read(tmp_path / "logs" / "profile_rank_0.csv")}
    assert EPOCHS * STEPS in steps  # rows were written with the number that comes next
    assert load_run(tmp_path / "logs").steps.tolist() == list(range(EPOCHS * STEPS))
