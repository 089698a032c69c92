"""The built site: its index has every public name, and a newcomer finds the way through it."""

from __future__ import annotations

import importlib
import inspect
import runpy
import subprocess
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ..conftest import ROOT
from ..test_public_classes import public_modules

pytest.importorskip("sphinx", reason="sphinx is not installed: make site")
pytest.importorskip("torch", reason="torch is not installed")
from my_utils.utils import DebugLayer

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

# Commands: docs/command-line.md has them.
NO_API = {"my_utils.cli", "my_utils.cli.demo"}
WITHOUT_TEXT = {"StackRecord.stack", "Straggler.as_dict"}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "sphinx", "--quiet", "--fail-on-warning", "-c", "docs/site",
         "-d", str(folder / "doctrees"), "docs", str(folder / "site")],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return folder / "site"


# --- the index ---


def index_of(site: Path) -> set[str]:
    """The names in objects.inv: four lines of text, then lines that zlib compressed."""
    data = (site / "objects.inv").read_bytes().split(b"\n", 4)[4]
    lines = zlib.decompress(data).decode().splitlines()
    return {name for name, kind in (line.split()[:2] for line in lines) if kind.startswith("py:")}


def public_values() -> list[tuple[Any, list[str]]]:
    """Each function, class and object of the public modules, with its public names. Of numbers and
    texts the modules say what they are."""
    found: dict[int, tuple[Any, list[str]]] = {}
    for name in public_modules():
        if name in NO_API:
            continue
        module = importlib.import_module(name)
        for public in getattr(module, "__all__", ()):
            value = getattr(module, public)
            if not isinstance(value, int | str | tuple) and value is not DebugLayer:
                found.setdefault(id(value), (value, []))[1].append(f"{name}.{public}")
    return list(found.values())


def methods_of(cls: type) -> Iterator[str]:
    """The public methods that are this project's, also of private bases and of types in C."""
    internal = runpy.run_path(str(ROOT / "docs" / "site" / "conf.py"))["CALLED_BY_PYTHON"]
    for name in dir(cls):
        owner = next((base for base in cls.__mro__ if name in vars(base)), None)
        if name.startswith("_") or owner is None:
            continue
        if owner.__module__ == "my_utils._core" and name in internal:
            continue
        if owner.__module__.startswith("my_utils") and inspect.isroutine(getattr(cls, name)):
            yield name


def test_every_public_name_is_in_the_index(site: Path) -> None:
    index = index_of(site)
    missing = [names for _, names in public_values() if not index & set(names)]
    assert missing == []


def test_every_public_method_is_in_the_index_and_says_what_it_does(site: Path) -> None:
    index = index_of(site)
    missing, silent = [], []
    for value, names in public_values():
        if not inspect.isclass(value) or not value.__module__.startswith("my_utils"):
            continue
        for method in methods_of(value):
            if not index & {f"{name}.{method}" for name in names}:
                missing.append(f"{names[0]}.{method}")
            if not inspect.getdoc(getattr(value, method)):
                silent.append(f"{value.__name__}.{method}")
    assert set(silent) == WITHOUT_TEXT
    assert {".".join(name.split(".")[-2:]) for name in missing} == WITHOUT_TEXT


def test_names_of_the_documents_are_in_the_index(site: Path) -> None:
    """Those that users looked for in vain."""
    last_two = {".".join(name.split(".")[-2:]) for name in index_of(site)}
    assert last_two >= {
        "utils.DebugLayer", "MyTimer.register_stage", "TimeManager.timer", "TimeManager.clear",
        "TimeData.sum", "TimeData.count", "TimeData.mean", "TimeData.rank_count",
        "CaptureController.on_enter",
        "CompareWithCPU.step", "NanInfTracker.step", "GatheredTime.items", "NoOpMyTimer.start",
        "logger_util.LOGGER", "utils.global_timer", "memory_snapshot.global_snapshotter",
    }  # fmt: skip


def test_what_programs_read_is_beside_the_pages(site: Path) -> None:
    for name in ("llms.txt", "for-assistants.md", "runs/verdict.md", "schema/why.json"):
        assert (site / name).read_bytes() == (ROOT / "docs" / name).read_bytes()
