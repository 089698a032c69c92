"""The comparison tools on a device that is neither the CPU nor CUDA: a small back end of torch's
PrivateUse1 key, compiled here and named "musa"."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="torch is not installed")
from tests.support.musa_backend import COMPILER, build

if shutil.which(COMPILER) is None:
    pytest.skip(f"there is no compiler {COMPILER}", allow_module_level=True)

SEEN = [["torch.ops.aten.gelu", "1"]]


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the tools said in a process that has the device."""
    build()
    folder: Path = tmp_path_factory.mktemp("musa")
    command = [sys.executable, "-m", "tests.profilers.operators.musa_runs", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.slow
def test_measures_of_tensors_are_those_of_their_copies_on_the_cpu(seen: dict[str, Any]) -> None:
    expected = {"hash": True, "md5": True, "stats": 11.0, "compare": True, "nans": 1}
    assert seen["tensors"] == expected


def test_an_operator_is_compared(seen: dict[str, Any]) -> None:
    assert seen["one operator"] == {"passed": 2, "failed": 0, "errors": 0, "at": []}


def test_a_sound_training_step(seen: dict[str, Any]) -> None:
    assert (seen["training"]["failed"], seen["training"]["errors"]) == (0, 0)
    assert seen["training"]["passed"] > 50


@pytest.mark.parametrize("reference", ["cpu", "float64", "function"])
def test_a_wrong_gelu_is_named(seen: dict[str, Any], reference: str) -> None:
    found = seen[f"wrong gelu by {reference}"]
    assert (found["failed"], found["errors"], found["at"]) == (1, 0, SEEN)


def test_the_device_as_the_reference(seen: dict[str, Any]) -> None:
    expected = {"passed": 1, "failed": 1, "errors": 0, "at": [["torch.ops.aten.gelu", ""]]}
    assert seen["device as reference"] == expected


def test_a_dump_runs_again_on_the_device(seen: dict[str, Any]) -> None:
    files = [f"torch.ops.aten.gelu_{kind}.pkl" for kind in ("inputs", "outputs")]
    assert set(files) <= set(seen["dump"]["files"])
    assert (seen["dump"]["wrong"], seen["dump"]["right"]) == (False, True)
    assert seen["dump"]["on"] == ["musa:0", "musa:0"]


@pytest.mark.parametrize("when", ["nan", "nan later"])
def test_the_first_nan(seen: dict[str, Any], when: str) -> None:
    assert seen[when] == {"first": ["torch.ops.aten.div", "producer", 1], "errors": 0}


def test_a_dump_of_a_nan_runs_again(seen: dict[str, Any]) -> None:
    assert seen["nan of one"] is False


def test_a_recording_has_the_digests_of_the_cpu(seen: dict[str, Any]) -> None:
    assert seen["recorded"] == {"same": True, "without": 0}
