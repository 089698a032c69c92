"""A command that replaces PYTHONPATH is recorded where its environment has the file of the page."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from ..conftest import ROOT
from ..docs.blocks import blocks_of

pytest.importorskip("torch", reason="torch is not installed")

pytestmark = pytest.mark.slow

TRAIN = """
import os, sys
assert os.environ["PYTHONPATH"] == "src"
assert not any(entry.endswith("sitecustomize") for entry in sys.path)
import torch
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(25):
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
"""
(BLOCK,) = (
    block
    for block in blocks_of(ROOT / "docs/runs/run-without-an-edit.md")
    if block.why == "run by tests/run/test_replaced_path.py"
)


@pytest.fixture
def python(tmp_path: Path) -> Path:
    """That of an environment of its own, which has torch from this one."""
    folder = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    (found,) = folder.glob("lib/python*/site-packages")
    (found / "torch.pth").write_text(f"{sysconfig.get_path('purelib')}\n")
    return folder / "bin" / "python"


def environment(python: Path, path: str) -> dict[str, str]:
    return {
        **os.environ, "PATH": f"{python.parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": path, "OMP_NUM_THREADS": "1",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("has_file", "options", "is_recorded"),
    [
        pytest.param(False, "", False, marks=pytest.mark.thorough),
        (True, "", True),
        pytest.param(True, "-E", False, marks=pytest.mark.thorough),
    ],
)
def test_it_is_recorded_with_the_file(
    has_file: bool, options: str, is_recorded: bool, python: Path, tmp_path: Path
) -> None:
    """And in an interpreter that is to ignore its environment nothing is."""
    if has_file:
        subprocess.run(BLOCK.code, shell=True, env=environment(python, ""), check=True)
    (tmp_path / "train.py").write_text(TRAIN)
    script = f"PYTHONPATH=src exec {python} {options} train.py"
    done = subprocess.run(
        [sys.executable, "-m", "my_utils", "run", "-o", "run", "--", "bash", "-c", script],
        cwd=tmp_path, env=environment(python, str(ROOT)), capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = list((tmp_path / "run").glob("profile_rank_0*.csv"))
    assert bool(found) is is_recorded, done.stderr


def test_without_my_utils_run_the_file_does_nothing(python: Path, tmp_path: Path) -> None:
    code = "import sys; print([p for p in sys.path if 'my_utils' in p], 'my_utils' in sys.modules)"
    ask = [str(python), "-c", code]
    variables = environment(python, "")
    before = subprocess.run(ask, env=variables, capture_output=True, text=True, check=True)
    subprocess.run(BLOCK.code, shell=True, env=variables, check=True)
    after = subprocess.run(ask, env=variables, capture_output=True, text=True, check=True)
    assert before.stdout == after.stdout and not after.stderr
