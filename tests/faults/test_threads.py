"""Threads that record, step, move files, hash, log, fork and end, all at once: nothing is lost.

The threads count what they record, and the files must hold as much; what they see of their own
models must be what they see alone. It runs with the interpreter of the tests, and with one without
a GIL where one is found.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ..conftest import ROOT

pytestmark = [pytest.mark.no_torch, pytest.mark.c_code]

PROGRAM = Path(__file__).with_name("thread_stress.py")
TORCH_PROGRAM = Path(__file__).with_name("torch_thread_stress.py")
SECONDS = 3.0

# An interpreter for which the module was built in place, and its usual names.
VARIABLE = "MY_UTILS_FREE_THREADED"
NAMES = ["python3.15t", "python3.14t", "python3.13t"]


def run(python: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        [python, *arguments], env=environment, capture_output=True, text=True, check=False,
        timeout=250,
    )  # fmt: skip


def free_threaded() -> str:
    """An interpreter without a GIL that has the module; skips the test where there is none."""
    named = os.environ.get(VARIABLE)
    found = [named] if named else list(filter(None, map(shutil.which, NAMES)))
    for python in found:
        if run(python, "-c", "import my_utils._core").returncode == 0:
            return python
    if found:
        pytest.skip(f"{found[0]} lacks the module: {found[0]} setup.py build_ext --inplace")
    pytest.skip(f"no free-threaded Python: {VARIABLE} is not set, none of {NAMES} on PATH")


def stress(python: str, folder: Path, program: Path = PROGRAM) -> dict[str, Any]:
    """What the program said; a warning, such as of a GIL that is back, fails."""
    done = run(python, "-W", "error::RuntimeWarning", str(program), str(folder), str(SECONDS))
    assert done.returncode == 0, done.stderr[-3000:]
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def nothing_is_lost(result: dict[str, Any]) -> None:
    assert result["failures"] == []
    assert result["troubles"] == {}
    counted = result["counted"]
    for name in ("stages", "events", "children"):
        assert result["rows"].get(name, 0) == counted[name], name
    for name in ("timed", "block", "durations"):
        assert result[name] == counted["timed"], name
    assert result["modules"] == counted["modules"]
    opened, closed = result["windows"]
    assert opened - closed in {0, 1}
    assert counted["stages"] > 0
    assert counted["moves"] > 0


@pytest.mark.slow
def test_threads_lose_nothing(tmp_path: Path) -> None:
    nothing_is_lost(stress(sys.executable, tmp_path))


@pytest.mark.slow
def test_threads_lose_nothing_without_a_gil(tmp_path: Path) -> None:
    result = stress(free_threaded(), tmp_path)
    assert result["free_threaded"]
    assert not result["gil"]
    nothing_is_lost(result)


def sees_what_one_thread_sees(result: dict[str, Any]) -> None:
    assert result["failures"] == []
    counted = result["counted"]
    assert result["rows"] == counted["stages"] > 0
    assert set(result["calls"]) == {counted["shared"] + counted["stages"] // 2}
    works = {"hashes", "compared", "signed", "dumped", "profiled", "recorded"}
    assert counted.keys() == works | {"shared", "stages", "operators", "cpu", "nan"}


@pytest.mark.slow
def test_threads_see_of_their_models_what_one_sees(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    sees_what_one_thread_sees(stress(sys.executable, tmp_path, TORCH_PROGRAM))


@pytest.mark.slow
def test_threads_see_of_their_models_what_one_sees_without_a_gil(tmp_path: Path) -> None:
    python = free_threaded()
    if run(python, "-c", "import torch").returncode:
        pytest.skip(f"{python} lacks torch")
    result = stress(python, tmp_path, TORCH_PROGRAM)
    assert result["free_threaded"]
    assert not result["gil"]
    sees_what_one_thread_sees(result)


# Packages of others turn it on: triton, which torch's count of FLOPs imports, and two for trainers.
IMPORT_ALL = """
import importlib, json, pkgutil, sys, warnings
for other in ("triton", "transformers", "lightning"):
    sys.modules[other] = None
import my_utils
warnings.simplefilter("error", RuntimeWarning)
missing = []
for module in pkgutil.walk_packages(my_utils.__path__, "my_utils."):
    if module.name.endswith("__main__"):
        continue
    try:
        importlib.import_module(module.name)
    except ImportError as error:  # of a package that has none for this interpreter
        missing.append(str(error))
print(json.dumps({"gil": sys._is_gil_enabled(), "missing": missing, "count": len(sys.modules)}))
"""


@pytest.mark.slow
def test_no_module_turns_the_gil_on(tmp_path: Path) -> None:
    done = run(free_threaded(), "-c", IMPORT_ALL)
    assert done.returncode == 0, done.stderr[-3000:]
    result = json.loads(done.stdout)
    assert not result["gil"], result["missing"]
