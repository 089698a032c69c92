"""Loaders that a training evaluates with are evaluation, not input; real runs."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.support.profile_rows import read

from ..conftest import RunPython
from ..support.schemas import loads_checked

pytestmark = [pytest.mark.thorough, pytest.mark.timeout(300)]

STEPS, EVERY, BATCHES = 60, 10, 4

TRAINING = f"""
import time
import torch
from torch.utils.data import DataLoader, Dataset

class Rows(Dataset):
    def __init__(self, count, takes_s):
        self.count, self.takes_s = count, takes_s
    def __len__(self):
        return self.count
    def __getitem__(self, index):
        time.sleep(self.takes_s)
        return torch.ones(16)

training = DataLoader(Rows({STEPS}, 0.0005), batch_size=1)
validation = DataLoader(Rows({BATCHES}, 0.06), batch_size=1)
model = torch.nn.Linear(16, 1)
optimizer = torch.optim.SGD(model.parameters(), 1e-3)

VALIDATE

for step, batch in enumerate(training):
    model(batch).square().mean().backward()
    time.sleep(0.004)
    optimizer.step()
    optimizer.zero_grad()
    if step % {EVERY} == {EVERY} - 1:
        validate()
"""

WAYS = {
    "a function without gradients": """
@torch.no_grad()
def validate():
    for batch in validation:
        model(batch)
""",
    "gradients off around the model alone": """
def validate():
    for batch in validation:
        with torch.inference_mode():
            model(batch)
""",
    "eval alone": """
def validate():
    model.eval()
    for batch in validation:
        model(batch)
    model.train()
""",
    "the loop ends early": """
def validate():
    for number, batch in enumerate(validation):
        with torch.no_grad():
            model(batch)
        if number == 2:
            break
""",
}


def inputs(folder: Path, script: str, run_python: RunPython) -> Counter[str]:
    (folder / "train.py").write_text(script)
    ran = run_python("-m", "my_utils", "run", "-o", "logs", "train.py", cwd=folder)
    assert ran.returncode == 0, ran.stderr[-3000:]
    (profile,) = (folder / "logs").glob("**/profile_rank_0.csv")
    rows = [row for row in read(profile) if row.kind == "END" and row.step >= 0]
    return Counter(row.name for row in rows)


@pytest.mark.parametrize("way", WAYS)
def test_a_slow_validation_loader_is_evaluation(
    way: str, run_python: RunPython, tmp_path: Path
) -> None:
    found = inputs(tmp_path, TRAINING.replace("VALIDATE", WAYS[way]), run_python)
    # The first batch of the first validation is like all that came before it where gradients are
    # on, and so is the end of the loop over the training set.
    assert STEPS <= found["input"] <= STEPS + 2
    verdict = loads_checked(
        "why", run_python("-m", "my_utils", "why", "logs", "--json", cwd=tmp_path).stdout
    )
    assert verdict["findings"][0]["kind"] == "eval", verdict["text"]
    assert not any("num_workers" in line for line in verdict["text"])


TWO_LOADERS = """
labelled, unlabelled = (DataLoader(Rows(30, 0.0005), batch_size=1) for _ in range(2))
model = torch.nn.Linear(16, 1)
teacher = torch.nn.Linear(16, 1)
optimizer = torch.optim.SGD(model.parameters(), 1e-3)
for one, other in zip(labelled, unlabelled):
    with torch.no_grad():
        teacher(other)
    (model(one).square().mean() + model(other).square().mean()).backward()
    optimizer.step()
"""

FETCHED_WITHOUT_GRADIENTS = """
batches = iter(DataLoader(Rows(60, 0.0005), batch_size=1))
model = torch.nn.Linear(16, 1)
optimizer = torch.optim.SGD(model.parameters(), 1e-3)
for step in range(60):
    with torch.no_grad():
        batch = next(batches)
    model(batch).square().mean().backward()
    optimizer.step()
"""

ONE_BACKWARD_FOR_MANY = """
model = torch.nn.Linear(16, 1)
optimizer = torch.optim.SGD(model.parameters(), 1e-3)
losses = []
for batch in DataLoader(Rows(60, 0.0005), batch_size=1):
    losses.append(model(batch).square().mean())
    if len(losses) == 3:
        sum(losses).backward()
        optimizer.step()
        losses = []
"""


@pytest.mark.parametrize("script", [TWO_LOADERS, FETCHED_WITHOUT_GRADIENTS, ONE_BACKWARD_FOR_MANY])
def test_what_is_trained_with_stays_input(
    script: str, run_python: RunPython, tmp_path: Path
) -> None:
    imports = TRAINING.partition("training =")[0]
    found = inputs(tmp_path, imports + script, run_python)
    assert found["input"] >= 60 - 2
