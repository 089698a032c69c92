"""What an installation brings: light imports, a typed C module, a library that needs libc only."""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterable
from pathlib import Path

import pytest

import my_utils
from my_utils import _core

from .conftest import ROOT, RunPython

pytestmark = [pytest.mark.long_file, pytest.mark.no_torch]

HEAVY = ["torch", "numpy", "pandas", "matplotlib", "rich", "msgspec"]
LIBC = {"libc.so.6", "libm.so.6", "libdl.so.2", "libpthread.so.0", "ld-linux-x86-64.so.2"}
LIBC |= {"ld-linux-aarch64.so.1", "linux-vdso.so.1"}
HIDDEN_AND_OURS = {".ci", ".clang-format", ".clang-tidy", ".github"}


def loaded_by(run_python: RunPython, statement: str) -> list[str]:
    program = f"import json, sys\n{statement}\nprint(json.dumps(list(sys.modules)))"
    done = run_python("-c", program)
    assert done.returncode == 0, done.stderr
    modules = json.loads(done.stdout.splitlines()[-1])
    return [name for name in HEAVY if name in modules]


@pytest.mark.parametrize(
    "statement",
    [
        "import my_utils",
        "import my_utils._core",
        "import my_utils.logger",
        "import my_utils.csv2trace",
        "from my_utils import GlobalLogger, MyTimer, csv_to_trace",
        "from my_utils import *",
        "import my_utils.dump_utils",
    ],
)
def test_import_brings_nothing_heavy(run_python: RunPython, statement: str) -> None:
    assert loaded_by(run_python, statement) == []


def test_every_export_resolves() -> None:
    for name in my_utils.__all__:
        assert getattr(my_utils, name) is not None, name
        assert name in dir(my_utils)


def test_an_unknown_name_says_so() -> None:
    with pytest.raises(AttributeError, match="module 'my_utils' has no attribute 'MyTimr'"):
        my_utils.MyTimr  # noqa: B018


def test_version_is_the_same_everywhere() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert my_utils.__version__ == project["version"]
    assert f"## {project['version']}" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


def test_the_installed_extras() -> None:
    try:
        metadata = importlib.metadata.metadata("my_utils")
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("my_utils runs from its folder here, it is not installed")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = set(project["optional-dependencies"])
    assert set(metadata.get_all("Provides-Extra") or []) == extras
    assert metadata["Requires-Python"] == ">=3.11"


def test_the_stub_says_what_the_module_has(tmp_path: Path) -> None:
    """In a package of nothing else, or mypy follows its imports and reads all of torch, as it does
    from the one import that the stub has of the package's."""
    pytest.importorskip("mypy", reason="mypy is not installed")
    package = tmp_path / "my_utils"
    package.mkdir()
    (package / "__init__.py").touch()
    for file in (_core.__file__, ROOT / "my_utils" / "_core.pyi"):
        shutil.copy(file, package)
    (tmp_path / "mypy.ini").write_text("[mypy]\nfollow_imports = skip\n")
    done = subprocess.run(
        [sys.executable, "-m", "mypy.stubtest", "--mypy-config-file", "mypy.ini", "my_utils._core"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_module_needs_libc_only() -> None:
    if shutil.which("ldd") is None:
        pytest.skip("ldd is not installed")
    lines = subprocess.run(
        ["ldd", str(_core.__file__)], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    needed = {Path(line.split()[0]).name for line in lines}
    assert needed <= LIBC


def test_the_module_exports_its_init_function_only() -> None:
    if shutil.which("nm") is None:
        pytest.skip("nm is not installed")
    listing = subprocess.run(
        ["nm", "-D", "--defined-only", str(_core.__file__)],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    names = [line.split()[-1] for line in listing.splitlines()]
    assert [name for name in names if not name.startswith("_")] == ["PyInit__core"]


@pytest.mark.skipif(sys.version_info < (3, 12), reason="CPython 3.11 has no way to refuse")
def test_the_module_refuses_a_second_interpreter(run_python: RunPython) -> None:
    program = (
        "import my_utils._core\n"
        "try:\n    import _interpreters as i\n"
        "except ImportError:\n    import _xxsubinterpreters as i\n"
        "print(i.run_string(i.create(), 'import my_utils._core'))"
    )
    done = run_python("-c", program)
    assert "does not support loading in subinterpreters" in done.stdout + done.stderr


def test_type_checkers_find_the_modules_of_an_editable_install(tmp_path: Path) -> None:
    """They follow the paths in .pth files, and run no code in them. Without the C module, which
    takes a minute to compile."""
    package = tmp_path / "my_utils" / "deep"
    package.mkdir(parents=True)
    (package.parent / "__init__.py").touch()
    (package.parent / "py.typed").touch()
    (package / "__init__.py").write_text("KIND: str = 'deep'\n")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tmp_path)
    program = "from setuptools.build_meta import build_editable; print(build_editable('out'))"
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True,
                          text=True, check=False)  # fmt: skip
    assert done.returncode == 0, done.stderr
    [wheel] = (tmp_path / "out").iterdir()
    with zipfile.ZipFile(wheel) as archive:
        [path] = [name for name in archive.namelist() if name.endswith(".pth")]
        assert Path(archive.read(path).decode().strip()).samefile(tmp_path)


def c_files(names: list[str]) -> set[str]:
    return {name for name in names if re.search(r"csrc/.*\.([ch]|cu|py)$", name)}


def packaged(names: Iterable[str]) -> set[str]:
    """The package's files that are neither compiled nor left over from a build."""
    inside = {name for name in names if name.startswith("my_utils/")}
    return {name for name in inside if not name.endswith((".so", ".pyc"))}


def build_wheel(source: Path, folder: Path) -> Path:
    """As pip does for users: in an environment that has the requirements of the build alone."""
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "-q"]
    project = tomllib.loads((source / "pyproject.toml").read_text(encoding="utf-8"))
    wheels = ["--no-deps", "-d", str(folder / "requirements"), *project["build-system"]["requires"]]
    if subprocess.run([*pip, "download", *wheels], check=False).returncode != 0:
        pytest.skip("pip is missing, or reaches no index with the requirements of the build")
    options = ["--no-deps", "--no-index", "--find-links", str(folder / "requirements")]
    subprocess.run(
        [*pip, "wheel", *options, "-w", str(folder / "wheel"), str(source)], check=True, timeout=400
    )
    (wheel,) = (folder / "wheel").glob("*.whl")
    return wheel


@pytest.fixture(scope="module")
def source_distribution(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The tree that it was made from, and what was in the archive."""
    pytest.importorskip("setuptools", minversion="77", reason="needs setuptools 77 or newer")
    folder = tmp_path_factory.mktemp("sdist")
    tree = folder / "tree"
    # Other tests write into the hidden folders meanwhile.
    leftovers = shutil.ignore_patterns("build", "*.so", "__pycache__")

    def unwanted(where: str, names: list[str]) -> set[str]:
        hidden = {name for name in names if name.startswith(".")} - HIDDEN_AND_OURS
        return leftovers(where, names) | hidden

    shutil.copytree(ROOT, tree, ignore=unwanted)
    make = [sys.executable, "setup.py", "-q", "sdist", "--dist-dir", str(folder)]
    subprocess.run(make, cwd=tree, check=True, capture_output=True, timeout=100)
    (archive,) = folder.glob("*.tar.gz")
    shutil.unpack_archive(archive, folder / "unpacked")
    (source,) = (folder / "unpacked").iterdir()
    return tree, source


def test_the_source_distribution_has_every_file(source_distribution: tuple[Path, Path]) -> None:
    tree, source = source_distribution
    inside = [path.relative_to(source).as_posix() for path in source.rglob("*") if path.is_file()]
    here = [path.relative_to(tree).as_posix() for path in tree.rglob("*") if path.is_file()]
    assert c_files(here) == c_files(inside)
    assert packaged(here) == packaged(inside)


def test_the_source_distribution_is_the_repository(
    source_distribution: tuple[Path, Path],
) -> None:
    """`make test` and `.ci/run` work in it: what git knows is there, but for what is git's own."""
    _, source = source_distribution
    listing = ["git", "ls-files", "-z"]
    known = subprocess.run(listing, cwd=ROOT, capture_output=True, text=True, check=False)
    if known.returncode != 0:
        pytest.skip("not a checkout of git")
    # A file that was removed is in the list until its removal is committed.
    names = {name for name in known.stdout.split("\0") if name and (ROOT / name).is_file()}
    inside = {path.relative_to(source).as_posix() for path in source.rglob("*") if path.is_file()}
    assert {name for name in names - inside if not name.startswith(".git")} == set()
    programs = [name for name in names & inside if os.access(ROOT / name, os.X_OK)]
    assert [name for name in programs if not os.access(source / name, os.X_OK)] == []


@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.timeout(500)  # compiles everything, beside other tests
def test_the_source_distribution_builds_a_wheel(
    source_distribution: tuple[Path, Path], tmp_path: Path
) -> None:
    """What stands in the archive is enough for a wheel with all files of the package, and NVTX."""
    _, source = source_distribution
    inside = [path.relative_to(source).as_posix() for path in source.rglob("*") if path.is_file()]
    built = tmp_path / "built"
    with zipfile.ZipFile(build_wheel(source, tmp_path)) as wheel:
        assert packaged(wheel.namelist()) == packaged(inside)
        wheel.extractall(built)
    (module,) = (built / "my_utils").glob("_core*.so")
    # Where its functions look for a tool that is attached; nothing else has this text.
    assert b"NVTX_INJECTION64_PATH" in module.read_bytes()
    program = "import my_utils._core as c; print(c.nvtx_state()['built'], c.__file__)"
    found = subprocess.run(
        [sys.executable, "-c", program], cwd=built, capture_output=True, text=True, check=True
    )
    assert found.stdout.strip() == f"True {module}"
