"""What is released: for which interpreters, from which workflow, and the same bytes each time."""

from __future__ import annotations

import base64
import csv
import hashlib
import importlib
import io
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path
from types import ModuleType

import pytest

from my_utils.core.extras import FLOOR

from .conftest import ROOT

pytestmark = pytest.mark.no_torch

MODULE = "my_utils/_core.cpython-311-x86_64-linux-gnu.so"
WORKFLOW = ROOT / ".github" / "workflows" / "release.yml"


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The functions of `make wheels` that build."""
    monkeypatch.syspath_prepend(str(ROOT / ".ci"))
    return importlib.import_module("wheel_build")


def classified() -> list[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    found = (re.fullmatch(r".*:: (3\.\d+)", line) for line in project["classifiers"])
    return [match[1] for match in found if match]


def test_the_interpreters_are_the_same_everywhere(script: ModuleType) -> None:
    pythons = importlib.import_module("wheel_pythons").PYTHONS
    assert list(pythons) == classified()
    assert f"CPython {pythons[0]} to {pythons[-1]}" in (ROOT / "README.md").read_text("utf-8")
    yaml = pytest.importorskip("yaml", reason="PyYAML is not installed")
    jobs = yaml.safe_load(WORKFLOW.read_text(encoding="utf-8"))["jobs"]
    assert jobs["test"]["strategy"]["matrix"]["python"] == list(pythons)
    [setup] = [step for step in jobs["build"]["steps"] if "setup-python" in step.get("uses", "")]
    assert sorted(setup["with"]["python-version"].split()) == sorted(pythons)


def test_the_matrix_has_the_oldest_torch() -> None:
    oldest = ".".join(map(str, FLOOR))
    assert f'"here torch-{oldest}"' in (ROOT / ".ci" / "matrix").read_text(encoding="utf-8")


def test_an_interpreter_of_the_checkout_is_found_by_its_relative_path() -> None:
    """As `make matrix` names it. The venv is made, and pip is what finds no wheel."""
    relative = os.path.relpath(sys.executable, ROOT)
    done = subprocess.run(
        [ROOT / ".ci" / "test-installed", relative, "none-1.0-py3-none-any.whl"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert "none-1.0-py3-none-any.whl" in done.stderr
    assert done.returncode == 1, done.stderr


def test_nothing_is_published_unless_a_maintainer_switches_it_on() -> None:
    yaml = pytest.importorskip("yaml", reason="PyYAML is not installed")
    text = WORKFLOW.read_text(encoding="utf-8")
    jobs = yaml.safe_load(text)["jobs"]
    assert jobs["build"]["if"] == "vars.RELEASE == 'on'"
    assert [jobs[name]["needs"] for name in ("test", "attest", "publish")] == [
        "build", "test", "attest",
    ]  # fmt: skip
    for name in ("attest", "publish"):
        assert jobs[name]["if"] == "github.ref_type == 'tag'"
    assert "://" not in text


def raw_wheel(folder: Path, *, date: int, backwards: bool, module: bytes = b"\x7fELF") -> Path:
    """A wheel as setuptools leaves it: for Python 3.11, with dates, without a bill of materials."""
    files = {
        MODULE: module,
        "my_utils/__init__.py": b"",
        "my_utils-1.0.dist-info/WHEEL": b"Wheel-Version: 1.0\nTag: cp311-cp311-linux_x86_64\n",
        "my_utils-1.0.dist-info/RECORD": b"",
    }
    folder.mkdir()
    path = folder / "my_utils-1.0-cp311-cp311-linux_x86_64.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name in sorted(files, reverse=backwards):
            archive.writestr(zipfile.ZipInfo(name, (date, 1, 1, 0, 0, 0)), files[name])
    return path


def test_a_wheel_has_one_order_and_one_date(script: ModuleType, tmp_path: Path) -> None:
    made = []
    for name, date in (("one", 2001), ("two", 2020)):
        raw = raw_wheel(tmp_path / name, date=date, backwards=name == "two")
        made.append(script.finish(raw, "3.14", "aarch64", "13.5.25", tmp_path / name))
    assert made[0].name == "my_utils-1.0-cp314-cp314-manylinux_2_28_aarch64.whl"
    assert made[0].read_bytes() == made[1].read_bytes()
    with zipfile.ZipFile(made[0]) as archive:
        assert b"Tag: cp314-cp314-manylinux_2_28_aarch64\n" in archive.read(
            "my_utils-1.0.dist-info/WHEEL"
        )
        bill = json.loads(archive.read("my_utils-1.0.dist-info/sboms/my_utils.cdx.json"))
        assert bill["bomFormat"] == "CycloneDX"
        assert [part["name"] for part in bill["components"]] == ["nvidia-nvtx"]
        record = archive.read("my_utils-1.0.dist-info/RECORD").decode()
        rows = {name: (digest, size) for name, digest, size in csv.reader(io.StringIO(record))}
        assert set(rows) == set(archive.namelist())
        for name, (digest, size) in rows.items():
            if not name.endswith("RECORD"):
                own = base64.urlsafe_b64encode(hashlib.sha256(archive.read(name)).digest())
                assert (digest, int(size)) == (
                    f"sha256={own.decode().rstrip('=')}", archive.getinfo(name).file_size,
                )  # fmt: skip


@pytest.mark.parametrize(
    ("module", "machine", "message"),
    [
        (b"\x7fELF .symtab", "x86_64", "is not stripped"),
        (b"\x7fELF assertion in /home/builder/error.c", "x86_64", "names /home/builder"),
        (b"\x7fELF", "aarch64", "has 0 modules named"),
        (random.Random(0).randbytes(2_000_000), "x86_64", "has 20[0-9]+ bytes"),
    ],
    ids=["with symbols", "with paths", "of another machine", "too large"],
)
def test_a_bad_wheel_is_refused(
    module: bytes, machine: str, message: str, script: ModuleType, tmp_path: Path
) -> None:
    raw = raw_wheel(tmp_path / "raw", date=2020, backwards=False, module=module)
    wheel = script.finish(raw, "3.11", machine, "13.5.25", tmp_path)
    with pytest.raises(RuntimeError, match=message):
        script.check_contents(wheel, "3.11", machine, [Path("/home/builder")])


@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.timeout(1500)  # compiles everything twice, beside other tests
def test_make_wheels_makes_a_wheel_and_tries_it(tmp_path: Path) -> None:
    """From two folders, with equal bytes, or the script fails."""
    machine = os.uname().machine
    version = f"{sys.version_info[0]}.{sys.version_info[1]}"
    tree = tmp_path / "tree"
    ignored = shutil.ignore_patterns("build", "dist", "*.so", "__pycache__", ".git", ".venv")
    shutil.copytree(ROOT, tree, ignore=ignored)
    done = subprocess.run(
        [sys.executable, ".ci/wheels", version, machine],
        cwd=tree, env={**os.environ, "SOURCE_DATE_EPOCH": "1700000000"},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if "No matching distribution found for ziglang" in done.stdout + done.stderr:
        pytest.skip("pip reaches no index with the compiler")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "the same from another folder, installed and tried" in done.stdout
    sums = (tree / "dist" / "SHA256SUMS").read_text(encoding="utf-8").split()
    files = dict(zip(sums[1::2], sums[::2], strict=True))
    assert len(files) == 2
    for name, digest in files.items():
        assert hashlib.sha256((tree / "dist" / name).read_bytes()).hexdigest() == digest
