"""A wheel installed where nothing else is: what it brings, how it works, and what it leaves."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import venv
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from .conftest import ROOT

pytestmark = pytest.mark.thorough

FILES = Path(__file__).parent / "data" / "wheel_files.txt"
SOURCES = ("my_utils", "csrc", "setup.py", "pyproject.toml", "README.md", "LICENSE", "MANIFEST.in")
NOBODY = 65534

RECORDS = """
from my_utils import GlobalLogger, MyTimer
GlobalLogger().setup("logs", console=False, rank=0, world_size=1)
timer = MyTimer()
for step in range(30):
    timer.set_step(step)
    with timer.time_stage("iter"):
        pass
    timer.step()
GlobalLogger().close()
"""


def run(*command: object, **options: object) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(  # type: ignore[call-overload]
        [str(word) for word in command], capture_output=True, text=True, check=False, **options
    )
    assert isinstance(done, subprocess.CompletedProcess)
    return done


def checked(*command: object, **options: object) -> str:
    done = run(*command, **options)
    assert done.returncode == 0, done.stdout + done.stderr
    return str(done.stdout)


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    """With spaces and umlauts; other users may read it."""
    made = Path(tempfile.mkdtemp(prefix="Größe und Räume "))
    made.chmod(0o755)
    yield made
    shutil.rmtree(made)


@pytest.fixture(scope="module")
def wheel(folder: Path) -> Path:
    source = folder / "source"
    source.mkdir()
    unwanted = shutil.ignore_patterns("__pycache__", "*.so", "build")
    for name in SOURCES:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, source / name, ignore=unwanted)
        else:
            shutil.copy(ROOT / name, source / name)
    checked(sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", folder, source)
    [made] = folder.glob("*.whl")
    return made


@pytest.fixture(scope="module")
def python(folder: Path, wheel: Path) -> Path:
    """An interpreter with the wheel and what it requires, and nothing else."""
    venv.create(folder / "venv", with_pip=True)
    program = folder / "venv" / "bin" / "python"
    checked(program, "-m", "pip", "install", "-q", wheel)
    return program


def files_of(wheel: Path) -> list[str]:
    """A line a folder; without versions and the name of the platform."""
    folders: dict[str, list[str]] = {}
    for path in zipfile.ZipFile(wheel).namelist():
        named = re.sub(r"-[\d.]+(?=\.dist-info/)", "", path)
        named = re.sub(r"_core\.cpython-.*\.so$", "_core.so", named)
        where, _, name = named.rpartition("/")
        folders.setdefault(where, []).append(name)
    return [f"{where}: {' '.join(sorted(names))}" for where, names in sorted(folders.items())]


def test_the_files_are_those_of_the_list(wheel: Path) -> None:
    """`MY_UTILS_WRITE_LIST=1` writes the list anew."""
    found = "\n".join(files_of(wheel)) + "\n"
    if os.environ.get("MY_UTILS_WRITE_LIST"):
        FILES.write_text(found, encoding="utf-8")
    assert found == FILES.read_text(encoding="utf-8")


def test_it_records_and_judges_without_torch(python: Path, folder: Path) -> None:
    command = python.with_name("my_utils")
    assert re.match(r"my_utils \d", checked(command, "--version"))
    checked(python, "-c", RECORDS, cwd=folder)
    checked(command, "trace", "logs", "-o", "trace.json", cwd=folder)
    assert run(command, "why", "logs", cwd=folder).returncode in (0, 3, 4)
    checked(command, "env")
    missing = run(python, "-c", "import my_utils.torch_ops")
    assert missing.returncode == 1 and "pip install torch" in missing.stderr


def test_it_needs_no_right_to_write_where_it_is(python: Path, folder: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("root alone can start another user's process")
    own = folder / "another user"
    own.mkdir()
    os.chown(own, NOBODY, NOBODY)
    before = sorted(python.parents[1].rglob("*"))
    env = {"HOME": str(own), "PATH": os.environ["PATH"]}
    checked(python, "-c", RECORDS, cwd=own, env=env, user=NOBODY)
    checked(
        python, "-m", "my_utils", "trace", "logs", "-o", "t.json", cwd=own, env=env, user=NOBODY
    )
    assert (own / "t.json").stat().st_uid == NOBODY
    assert sorted(python.parents[1].rglob("*")) == before


def test_uninstalling_leaves_nothing(python: Path) -> None:
    """The last test of the file: the others need what it takes away."""
    checked(python, "-m", "pip", "uninstall", "-q", "-y", "my_utils")
    assert list(python.parents[1].rglob("*my_utils*")) == []
