"""Extensions built with a fake mcc: what it is asked for, and that what comes out works."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from ..conftest import ROOT
from ..support.musa_toolkit import Toolkit

pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("setuptools", reason="setuptools is not installed")

import torch

from my_utils.musa import _toolkit
from my_utils.musa.musa_extension import (
    BuildExtension,
    MUSAExtension,
    include_paths,
    library_paths,
    load,
    load_inline,
)
from my_utils.musa.simple_porting import SimplePorting

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not installed")

# Without torch's headers, which take a compiler half a minute.
BINDINGS = """#include <Python.h>
#define NAME_(a) PyInit_##a
#define NAME(a) NAME_(a)
#define TEXT_(a) #a
#define TEXT(a) TEXT_(a)
extern int answer(void);
static PyObject *call(PyObject *self, PyObject *unused) { return PyLong_FromLong(answer()); }
static PyMethodDef methods[] = {{"answer", call, METH_NOARGS, ""}, {NULL, NULL, 0, NULL}};
static PyModuleDef module = {PyModuleDef_HEAD_INIT, TEXT(TORCH_EXTENSION_NAME), NULL, -1, methods};
PyMODINIT_FUNC NAME(TORCH_EXTENSION_NAME)(void) { return PyModule_Create(&module); }
"""
KERNEL = """#include <musa_runtime.h>
#ifndef EXTRA
#define EXTRA 0
#endif
int answer(void) { return musaFake() + EXTRA; }
"""


@pytest.fixture
def toolkit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Toolkit:
    toolkit = Toolkit(tmp_path / "musa home")
    for name in ("MUSA_PATH", "MUDNN_HOME", "TORCH_MUSA_ARCH_LIST", "MAX_JOBS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("MUSA_HOME", str(toolkit.home))
    return toolkit


@pytest.fixture
def sources(tmp_path: Path) -> list[str]:
    paths = {"bind.cpp": BINDINGS, "kernel.mu": KERNEL}
    for name, text in paths.items():
        (tmp_path / name).write_text(text)
    return [str(tmp_path / name) for name in paths]


def build(extension: Any, folder: Path) -> ModuleType:
    from setuptools import Distribution

    command = BuildExtension(Distribution({"name": "x", "ext_modules": [extension]}))
    command.build_lib = str(folder / "lib")
    command.build_temp = str(folder / "temp")
    command.ensure_finalized()
    command.run()
    (library,) = (folder / "lib").rglob("*.so")
    name = extension.name.split(".")[-1]
    spec = importlib.util.spec_from_file_location(name, library)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(autouse=True)
def runtime_is_found(toolkit: Toolkit, monkeypatch: pytest.MonkeyPatch) -> None:
    """The loader does not know the fake toolkit; an extension's user sets LD_LIBRARY_PATH."""
    import ctypes

    ctypes.CDLL(str(toolkit.home / "lib/libmusart.so"), mode=ctypes.RTLD_GLOBAL)


def test_each_source_has_its_compiler(
    toolkit: Toolkit, sources: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCH_MUSA_ARCH_LIST", "21;2.2 mp_31")
    monkeypatch.setenv("MUDNN_HOME", str(toolkit.home))
    extension = MUSAExtension(
        "pack._C", sources,
        extra_compile_args={"cxx": ["-O1"], "mcc": ["-O2", "-DEXTRA=1"], "mcc_dlink": ["-dlink"]},
        define_macros=[("MINE", "1")], extra_link_args=[f"-Wl,-rpath,{toolkit.home}/lib"],
    )  # fmt: skip
    assert build(extension, tmp_path).answer() == 43
    kernel, link = toolkit.calls()
    assert kernel[kernel.index("-o") - 1] == sources[1]
    assert {"-c", "-O2", "-DEXTRA=1", "-DMINE=1", "-fPIC", "-std=c++20"} <= set(kernel)
    assert {"-DTORCH_EXTENSION_NAME=_C", f"-I{toolkit.home}/include"} <= set(kernel)
    assert [each for each in kernel if "arch" in each] == [
        "--offload-arch=mp_21", "--offload-arch=mp_22", "--offload-arch=mp_31",
    ]  # fmt: skip
    assert "-O1" not in kernel and "-x" not in kernel
    assert "-dlink" in link and link[0].endswith("kernel.o") and "bind.o" not in " ".join(link)


@pytest.fixture
def torch_musa(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package with the folders that torch_musa installs."""
    package = tmp_path / "site/torch_musa"
    for folder in (*_toolkit.TORCH_MUSA_HEADERS, "lib", "csrc/core"):
        (package / folder).mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "csrc/core/MUSAGuard.h").write_text("#include <ATen/musa/PhiloxCudaState.h>\n")
    ported = package / "share/generated_cuda_compatible/include"
    for name in ("ATen/musa/PhiloxCudaState.h", "ATen/native/musa/Loops.muh", "ATen/ATen.h"):
        (ported / name).parent.mkdir(parents=True, exist_ok=True)
        (ported / name).write_text(f"#pragma once\n// {name}\n")
    (package / "share/torch_musa_codegen/generated.h").write_text("#pragma once\n")
    monkeypatch.syspath_prepend(str(package.parent))
    return package


def test_the_headers_that_a_port_names_are_found(
    toolkit: Toolkit, torch_musa: Path, tmp_path: Path
) -> None:
    """Those of torch_musa, which are torch's, ported, before torch's own."""
    root = tmp_path / "src"
    root.mkdir()
    (root / "a.cu").write_text(
        "#include <c10/cuda/CUDAGuard.h>\n#include <ATen/cuda/PhiloxCudaState.h>\n"
        "#include <ATen/native/cuda/Loops.cuh>\n#include <ATen/ATen.h>\n"
        "#include <generated.h>\n#include <cuda_runtime.h>\n"
    )
    SimplePorting(root, progress=False).run()
    folders = MUSAExtension("_C", ["a.mu"]).include_dirs
    done = subprocess.run(
        ["g++", "-M", "-x", "c++", *(f"-I{folder}" for folder in folders),
         tmp_path / "src_musa/a.mu"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = done.stdout.split()
    assert f"{torch_musa}/share/generated_cuda_compatible/include/ATen/ATen.h" in found
    assert f"{torch_musa}/csrc/core/MUSAGuard.h" in found
    assert str(toolkit.home) not in " ".join(include_paths(musa=False))
    assert f"{torch_musa}/lib" in library_paths()


@pytest.mark.parametrize(
    "options",
    [
        {"dlink": True, "extra_compile_args": {"mcc_dlink": ["-O1"]}},
        {"dlink_libraries": ["one", "two"], "library_dirs": ["/mine"]},
        {"dlink": True, "extra_compile_args": ["-O1"]},
    ],
)
def test_device_code_is_linked_first(
    toolkit: Toolkit, sources: list[str], tmp_path: Path, options: dict[str, Any]
) -> None:
    given = {key: list(value) for key, value in options.items() if isinstance(value, list)}
    assert build(MUSAExtension("_C", sources, **options), tmp_path).answer() == 42
    _, link = toolkit.calls()
    assert "-dlink" in link and "-fPIC" in link and link[0].endswith("kernel.o")
    for library in options.get("dlink_libraries", ()):
        assert f"-l{library}" in link and "-L/mine" in link
    assert {key: options[key] for key in given} == given, "what the user gave is changed"


def test_without_dlink_nothing_is_linked_first(
    toolkit: Toolkit, sources: list[str], tmp_path: Path
) -> None:
    assert build(MUSAExtension("_C", sources, dlink=False), tmp_path).answer() == 42
    assert len(toolkit.calls()) == 1
    with pytest.raises(TypeError, match="dlink_libraries must be a list of names, not 'one'"):
        MUSAExtension("_C", sources, dlink_libraries="one")
    with pytest.raises(TypeError, match="dlink"):
        MUSAExtension("_C", sources, dlink="yes")


def test_the_homes(toolkit: Toolkit, monkeypatch: pytest.MonkeyPatch) -> None:
    from my_utils.musa import musa_extension

    assert str(toolkit.home) == musa_extension.MUSA_HOME
    homes: list[str | None] = [musa_extension.MUDNN_HOME]
    monkeypatch.setenv("MUDNN_PATH", "/mudnn")
    homes.append(musa_extension.MUDNN_HOME)
    assert homes == [None, "/mudnn"]
    with pytest.raises(AttributeError, match="NO_HOME"):
        musa_extension.NO_HOME  # noqa: B018


def test_force_mcc(toolkit: Toolkit, sources: list[str], tmp_path: Path) -> None:
    extension = MUSAExtension(
        "_C", sources, extra_compile_args={"cxx": ["force_mcc", "-O1"], "mcc": ["-std=c++17"]}
    )
    assert build(extension, tmp_path).answer() == 42
    calls = toolkit.calls()
    assert len(calls) == 2
    (forced,) = (call for call in calls if sources[0] in call)
    assert forced[forced.index("-x") + 1] == "musa"
    assert all("force_mcc" not in call and "-std=c++20" not in call for call in calls)


def test_a_list_of_flags_goes_to_all(
    toolkit: Toolkit, sources: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MAX_JOBS", "1")
    extension = MUSAExtension("_C", sources, extra_compile_args=["-DEXTRA=5", "-O0"])
    assert build(extension, tmp_path).answer() == 47


def test_a_compiler_that_fails(toolkit: Toolkit, sources: list[str], tmp_path: Path) -> None:
    Path(sources[1]).write_text("int answer(\n")
    with pytest.raises(Exception, match="mcc"):
        build(MUSAExtension("_C", sources), tmp_path)


def test_without_a_toolkit(
    sources: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MUSA_HOME", str(tmp_path / "nothing"))
    with pytest.raises(OSError, match="install the MUSA toolkit, and set MUSA_HOME or MUSA_PATH"):
        build(MUSAExtension("_C", sources), tmp_path)


@pytest.mark.parametrize(
    ("flags", "error", "text"),
    [
        ({"nvcc": ["-O2"]}, ValueError, "'nvcc' is not allowed .nvcc's flags go to mcc."),
        ({"cc": []}, ValueError, "allowed are cxx, mcc, mcc_dlink"),
        ({"mcc": "-O2"}, TypeError, "extra_compile_args.'mcc'. must be a list"),
    ],
)
def test_wrong_flags(flags: dict[str, Any], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        MUSAExtension("_C", ["a.mu"], extra_compile_args=flags)


@pytest.mark.parametrize(
    "name", ["include_dirs", "library_dirs", "libraries", "extra_link_args", "extra_compile_args"]
)
def test_a_text_is_no_list(name: str) -> None:
    with pytest.raises(TypeError, match=f"{name} must be a list, not 'some'"):
        MUSAExtension("_C", ["a.mu"], **{name: "some"})
    with pytest.raises(TypeError, match=r"sources must be a list, not 'a\.mu'"):
        MUSAExtension("_C", "a.mu")


def test_where_the_toolkit_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    toolkit = Toolkit(tmp_path / "other")
    for name in ("MUSA_HOME", "MUSA_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", f"{toolkit.home}/bin{os.pathsep}{os.environ['PATH']}")
    assert _toolkit.musa_home() == toolkit.home
    assert _toolkit.mcc_path() == f"{toolkit.home}/bin/mcc"
    monkeypatch.setenv("MUSA_PATH", "/path")
    assert _toolkit.musa_home() == Path("/path")
    monkeypatch.setenv("MUSA_HOME", "/home")
    assert _toolkit.musa_home() == Path("/home")


def test_architectures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_MUSA_ARCH_LIST", "21,mp_21")
    assert _toolkit.arch_flags([]) == ["--offload-arch=mp_21"]
    assert _toolkit.arch_flags(["--cuda-gpu-arch=mp_22"]) == []
    monkeypatch.setenv("TORCH_MUSA_ARCH_LIST", "new")
    with pytest.raises(ValueError, match="TORCH_MUSA_ARCH_LIST: 'new' is not an architecture"):
        _toolkit.arch_flags([])


def test_load(toolkit: Toolkit, sources: list[str], tmp_path: Path) -> None:
    def loaded() -> Any:
        return load("jit", sources, extra_musa_cflags=["-DEXTRA=2"], build_directory=tmp_path / "b")

    assert loaded().answer() == 44
    calls = len(toolkit.calls())
    assert loaded().answer() == 44
    assert len(toolkit.calls()) == calls, "it was built again"
    Path(sources[1]).write_text(KERNEL.replace("musaFake() +", "1 +"))
    again = loaded()
    assert (again.answer(), again.__name__) == (3, "jit_v1")


def test_load_inline(toolkit: Toolkit, tmp_path: Path) -> None:
    module: Any = load_inline(
        "inline", BINDINGS, [KERNEL], build_directory=tmp_path / "b", no_implicit_headers=True
    )
    assert module.answer() == 42
    assert (tmp_path / "b/musa.mu").read_text() == KERNEL + "\n"


def test_what_load_inline_writes(
    toolkit: Toolkit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its headers take a compiler half a minute, so nothing is compiled here."""
    monkeypatch.setattr("my_utils.musa.musa_extension.load", lambda name, sources, *_: sources)
    folder = tmp_path / "b"
    paths: Any = load_inline(
        "inline", "int f();", "int f() { return 1; }", {"f": 'is "f"'}, build_directory=folder
    )
    main, kernel = paths
    assert Path(main).read_text().splitlines() == [
        "#include <torch/extension.h>",
        "int f();",
        "PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {",
        'm.def("f", torch::wrap_pybind_function(f), "is \\"f\\"");',
        "}",
    ]
    assert Path(kernel).read_text().splitlines()[1] == "#include <musa_runtime.h>"


SETUP = """
import os
from setuptools import setup, find_packages
from my_utils.musa.simple_porting import SimplePorting
from my_utils.musa.musa_extension import MUSAExtension, BuildExtension

_src_path = os.path.dirname(os.path.abspath(__file__))
c_flags = {"cxx": ["-O3", "-std=c++14"], "mcc": ["-O2"]} if os.name == "posix" else []

SimplePorting(cuda_dir_path="freqencoder/src", mapping_rule={
    "x.device().is_cuda()": "true",
    "#include <ATen/cuda/CUDAContext.h>":
        '#include "torch_musa/csrc/aten/musa/MUSAContext.h"',
}).run()

setup(
    name="freqencoder",
    packages=find_packages(),
    ext_modules=[
        MUSAExtension(
            name="freqencoder._MUSAC",
            sources=[os.path.join(_src_path, "freqencoder/src_musa", f)
                     for f in ["freqencoder.mu", "bindings.cpp"]],
            extra_compile_args=c_flags,
        ),
    ],
    cmdclass={"build_ext": BuildExtension},
)
"""
CUDA_KERNEL = """#include <ATen/cuda/CUDAContext.h>
#include <cuda_runtime.h>
#include "helper.cuh"
cudaError_t status;
int answer(void) { return HELPER; }  // x.device().is_cuda()
"""


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_a_setup_script(toolkit: Toolkit, tmp_path: Path) -> None:
    folder = tmp_path / "project"
    source = folder / "freqencoder/src"
    source.mkdir(parents=True)
    (folder / "freqencoder/__init__.py").write_text("from ._MUSAC import answer\n")
    (source / "bindings.cpp").write_text(BINDINGS)
    (source / "freqencoder.cu").write_text(CUDA_KERNEL)
    (source / "helper.cuh").write_text("#define HELPER 7\n")
    (folder / "setup_musa.py").write_text(SETUP)
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "LD_LIBRARY_PATH": f"{toolkit.home}/lib:{Path(torch.__file__).parent}/lib",
    }
    for command in (
        ["setup_musa.py", "build_ext", "--inplace"],
        ["-c", "import torch, freqencoder; print(freqencoder.answer())"],
    ):
        done = subprocess.run(
            [sys.executable, *command],
            cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=100,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout == "7\n"
    text = (folder / "freqencoder/src_musa/freqencoder.mu").read_text()
    assert "musaError_t status" in text and "// true" in text
