"""`my_utils.auto()`: where its files go, and what it refuses."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import my_utils

from ..conftest import RunPython

TRAINING = """
import os
import my_utils
my_utils.auto({0})
import torch
os.chdir("/")
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for _ in range(3):
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
"""


@pytest.mark.parametrize("argument", ["'runs/all'", "logs='runs/all'", "pathlib.Path('runs/all')"])
def test_the_folder_of_its_runs(run_python: RunPython, tmp_path: Path, argument: str) -> None:
    """Of the folder in which it was called, whatever the script does later."""
    (tmp_path / "train.py").write_text("import pathlib\n" + TRAINING.format(argument))
    done = run_python("train.py")
    assert done.returncode == 0, done.stderr
    runs = tmp_path / "runs" / "all"
    (folder,) = (path for path in runs.iterdir() if not path.is_symlink())
    assert re.fullmatch(r"train-\d{8}-\d{6}", folder.name)
    assert {"run.json", "profile_rank_0.csv"} <= {path.name for path in folder.iterdir()}
    assert (runs / "latest").resolve() == folder
    assert not (tmp_path / "logs").exists()


def test_what_is_no_path() -> None:
    with pytest.raises(TypeError, match=r"^logs must be a path, not 3$"):
        my_utils.auto(3)  # type: ignore[arg-type]
