"""CMakeLists.txt as CMakeListsGenerator writes it, configured and built by a real CMake; LOGGER."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from my_utils.musa.cmake_lists_generator import CMakeListsGenerator
from my_utils.musa.logger_util import LOGGER

from ..conftest import RunPython
from ..support.musa_toolkit import Toolkit

pytestmark = pytest.mark.no_torch

SOURCE = """#include "mine.h"
#include <string>
extern "C" int helper(int);
extern "C" int answer(void) { return helper(VALUE) + (int)std::string(TEXT).size() + MINE; }
"""

HELPER = """extern "C" int musaFake(void);
extern "C" int helper(int x) { return x + musaFake(); }
"""


def cmake() -> str:
    """That of the package `cmake` where it is installed, else the system's."""
    beside = Path(sys.executable).parent / "cmake"
    found = str(beside) if beside.exists() else shutil.which("cmake")
    if found is None or shutil.which("g++") is None:
        pytest.skip("cmake or g++ is not installed")
    return found


@pytest.mark.slow
def test_a_real_cmake_builds_it(tmp_path: Path) -> None:
    program = cmake()
    toolkit = Toolkit(tmp_path / "musa")
    folder = tmp_path / "a b $c"
    (folder / "include").mkdir(parents=True)
    (folder / "include/mine.h").write_text("#define MINE 1000\n")
    (folder / "k.mu").write_text(SOURCE)
    (folder / "h.cpp").write_text(HELPER)
    path = CMakeListsGenerator(
        sources=[folder / "k.mu", str(folder / "h.cpp")],
        include_dirs=[str(folder / "include")],
        link_libraries=str(toolkit.home / "lib/libmusart.so"),
        define_macros=["VALUE=100", ("TEXT", '"four"')],
        project_name="mine", plugin_name="plug", mcc_flags=["-O1"], output=folder,
    ).generate()  # fmt: skip
    assert path == folder / "CMakeLists.txt"
    environment = {**os.environ, "MUSA_HOME": str(toolkit.home)}
    build = tmp_path / "build"
    for command in (
        [program, "-S", str(folder), "-B", str(build), "-G", "Unix Makefiles"],
        [program, "--build", str(build)],
    ):
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, check=False, timeout=100
        )
        assert done.returncode == 0, done.stdout + done.stderr
    assert ctypes.CDLL(str(build / "libplug.so")).answer() == 100 + 42 + 4 + 1000


def test_torch_and_torch_musa_are_found(tmp_path: Path, run_python: RunPython) -> None:
    """By the Python that CMake is told, without importing them."""
    program = cmake()
    toolkit = Toolkit(tmp_path / "musa")
    site = tmp_path / "site"
    ported = site / "torch_musa/share/generated_cuda_compatible/include"
    for path, text in {
        site / "torch/__init__.py": "raise ImportError('not to be imported')\n",
        site / "torch/include/ATen/ATen.h": "#define WHOSE 1\n",
        site / "torch/include/c10/c10.h": "#define C10 20\n",
        site / "torch_musa/__init__.py": "raise ImportError('not to be imported')\n",
        site / "torch_musa/csrc/core/MUSAGuard.h": "#define GUARD 300\n",
        ported / "ATen/ATen.h": "#define WHOSE 2\n",
    }.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    source = tmp_path / "libtorch.c"
    source.write_text("int of_torch(void) { return 4000; }\n")
    (site / "torch/lib").mkdir()
    subprocess.run(
        ["gcc", "-shared", "-fPIC", source, "-o", site / "torch/lib/libtorch.so"], check=True
    )
    (tmp_path / "k.mu").write_text(
        "#include <ATen/ATen.h>\n#include <c10/c10.h>\n#include <Python.h>\n"
        '#include "torch_musa/csrc/core/MUSAGuard.h"\nextern "C" int of_torch(void);\n'
        'extern "C" int answer(void) { return WHOSE + C10 + GUARD + of_torch(); }\n'
    )
    CMakeListsGenerator([tmp_path / "k.mu"], output=tmp_path).generate()
    environment = {**os.environ, "MUSA_HOME": str(toolkit.home), "PYTHONPATH": str(site)}
    build = tmp_path / "build"
    for command in (
        [program, "-S", str(tmp_path), "-B", str(build), f"-DPython3_EXECUTABLE={sys.executable}"],
        [program, "--build", str(build)],
    ):
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, check=False, timeout=100
        )
        assert done.returncode == 0, done.stdout + done.stderr
    # Another process: in this one a torch may be loaded.
    program = "import ctypes, sys; print(ctypes.CDLL(sys.argv[1]).answer())"
    done = run_python("-c", program, str(build / "libmusa_plugin.so"))
    assert done.stdout == "4322\n", done.stderr
    assert "torch" not in CMakeListsGenerator(["/a.mu"], with_torch=False).text()


def test_a_text_of_the_users_own(tmp_path: Path) -> None:
    """In the place that torch_musa's own generator has for it."""
    own = "project(mine)\n"
    generator = CMakeListsGenerator([], [], [], None, "p", "q", own, output=tmp_path)
    assert generator.generate().read_text() == own
    with pytest.raises(TypeError, match="customized_cmake_lists must be a str or None"):
        CMakeListsGenerator(["a"], customized_cmake_lists=3)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("macros", "wanted"),
    [
        (None, None),
        ([], None),
        (["A", "-DB=1"], '"-DA" "-DB=1"'),
        ([("A", None), ("B", "x y")], '"-DA" "-DB=x y"'),
        ({"A": "1"}, '"-DA=1"'),
    ],
)
def test_macros(macros: Any, wanted: str | None) -> None:
    text = CMakeListsGenerator(["/a.cpp"], define_macros=macros).text()
    assert ("add_definitions" in text) == (wanted is not None)
    assert wanted is None or f"add_definitions({wanted})" in text


def test_libraries_are_one_or_a_list() -> None:
    one = CMakeListsGenerator(["/a.cpp"], [], "/lib/libx.so").text()
    assert 'target_link_libraries(musa_plugin "/lib/libx.so")' in one
    two = CMakeListsGenerator(["/a.cpp"], [], ["/lib/libx.so", "pthread"]).text()
    assert '"/lib/libx.so" "pthread")' in two
    assert "target_link_libraries" not in CMakeListsGenerator(["/a.cpp"], with_torch=False).text()


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ({"sources": "a.cpp"}, TypeError, "sources"),
        ({"sources": []}, ValueError, "sources"),
        ({"include_dirs": "a"}, TypeError, "include_dirs"),
        ({"link_libraries": 3}, TypeError, "link_libraries"),
        ({"define_macros": ["1x"]}, ValueError, "define_macros"),
        ({"define_macros": "A"}, TypeError, "define_macros"),
        ({"project_name": "a b"}, ValueError, "project_name='a b'"),
        ({"plugin_name": "a)"}, ValueError, "plugin_name"),
        ({"cxx_standard": 12}, ValueError, "cxx_standard"),
    ],
)
def test_wrong_arguments(arguments: dict[str, Any], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        CMakeListsGenerator(**{"sources": ["a.cpp"], **arguments})


def test_the_logger(capsys: pytest.CaptureFixture[str]) -> None:
    for level in ("debug", "info", "warning", "error", "critical"):
        getattr(LOGGER, level)(f"it is {level}")
    captured = capsys.readouterr()
    lines = captured.err.splitlines()
    assert captured.out == "" and len(lines) == 4
    for line, level in zip(lines, ("info", "warning", "error", "critical"), strict=True):
        assert f"| {level.upper()} | test_musa_cmake.py:" in line and line.endswith(
            f"it is {level}"
        )


def test_the_level_of_the_logger(run_python: RunPython) -> None:
    program = "from my_utils.musa.logger_util import LOGGER; LOGGER.debug('seen')"
    assert "seen" in run_python("-c", program, env={"MUSA_LOG_LEVEL": "debug"}).stderr
    assert "seen" not in run_python("-c", program, env={"MUSA_LOG_LEVEL": "nonsense"}).stderr
