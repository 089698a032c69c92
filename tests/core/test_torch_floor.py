"""A torch below the floor is one warning, where something that needs torch is imported."""

from __future__ import annotations

import tomllib

import pytest

from my_utils.core.extras import FLOOR

from ..conftest import ROOT, RunPython

# Which version it is, the real torch says otherwise.
PROGRAM = """
import my_utils
import torch
torch.__version__ = {version!r}
my_utils.MyTimer(tag="no torch in it")
print("so far")
my_utils.CompareWithCPU
my_utils.ModuleProfiler
import my_utils.torch_ops
"""


@pytest.mark.no_torch
def test_the_requirement_is_the_floor() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    floor = ".".join(map(str, FLOOR))
    assert f"torch>={floor}" in project["optional-dependencies"]["torch"]
    assert f"torch >= {floor}" in (ROOT / "README.md").read_text(encoding="utf-8")


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("version", "warned"),
    [
        ("2.10.0+cu128", True),
        ("1.13", True),
        ("2.11.0a0+git1", False),
        ("3.0", False),
        ("?", False),
    ],
)
def test_an_old_torch_is_one_warning(version: str, warned: bool, run_python: RunPython) -> None:
    pytest.importorskip("torch")
    done = run_python("-c", PROGRAM.format(version=version))
    assert done.returncode == 0, done.stderr
    expected = [
        f"torch {version} is older than 2.11, the oldest that my_utils is tested with: profilers "
        "can lose figures, and set_step can break a compiled graph"
    ]
    assert done.stderr.splitlines() == (expected if warned else [])
