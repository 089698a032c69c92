"""Builds C++ and MUSA extensions of PyTorch, as torch.utils.cpp_extension does for CUDA.

    from my_utils.musa.musa_extension import BuildExtension, MUSAExtension

    setup(
        name="mine",
        ext_modules=[MUSAExtension("mine._C", ["bind.cpp", "kernel.mu"],
                                   extra_compile_args={"cxx": ["-O3"], "mcc": ["-O2"]})],
        cmdclass={"build_ext": BuildExtension},
    )

Environment: MUSA_HOME or MUSA_PATH (the toolkit), MUDNN_HOME or MUDNN_PATH, TORCH_MUSA_ARCH_LIST
("21;22"; your own flags that name an architecture win), MAX_JOBS (compilers at a time; default:
the processors).
The versions of compiler and ABI are checked, and names defined, by torch's own BuildExtension.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from ..core.extras import needs_torch
from ..core.files import atomic_write
from . import _toolkit

with needs_torch("my_utils.musa.musa_extension"):
    import torch
    from torch.utils.cpp_extension import CppExtension, get_default_build_root

    from ._extension import BuildExtension, MUSAExtension, include_paths, library_paths

__all__ = [
    "BuildExtension",
    "CppExtension",
    "MUSAExtension",
    "include_paths",
    "library_paths",
    "load",
    "load_inline",
]

# Modules loaded in this process: by name, the key of each build, in order.
_loaded: dict[str, list[str]] = {}


def __getattr__(name: str) -> str | None:
    """`MUSA_HOME` and `MUDNN_HOME`: the folders as they are now; None if there is none."""
    homes = {"MUSA_HOME": _toolkit.musa_home, "MUDNN_HOME": _toolkit.mudnn_home}
    if name not in homes:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = homes[name]()
    return None if home is None else str(home)


def load(
    name: str,
    sources: str | Sequence[str],
    extra_cflags: Sequence[str] | None = None,
    extra_musa_cflags: Sequence[str] | None = None,
    extra_ldflags: Sequence[str] | None = None,
    extra_include_paths: Sequence[str] | None = None,
    build_directory: str | os.PathLike[str] | None = None,
    verbose: bool = False,
    is_python_module: bool = True,
) -> ModuleType | str:
    """Builds an extension from files and imports it.

    Parameters as torch.utils.cpp_extension.load has them. What was built before from the same
    sources and flags is loaded without a build (headers are not checked: remove the folder when
    they change); processes that build at once wait for one another. A module that is built again
    with changes in one process gets a suffix, `_v1`, since a loaded library cannot be replaced.

    Returns the module, or with `is_python_module=False` the path of the library, loaded into
    torch.ops.
    """
    files = [os.path.abspath(each) for each in ([sources] if isinstance(sources, str) else sources)]
    options = {
        "extra_compile_args": {
            "cxx": list(extra_cflags or []),
            "mcc": list(extra_musa_cflags or []),
        },
        "extra_link_args": list(extra_ldflags or []),
        "include_dirs": [os.path.abspath(path) for path in extra_include_paths or []],
    }
    folder = Path(build_directory) if build_directory is not None else _default_folder(name)
    folder.mkdir(parents=True, exist_ok=True)
    key = _key(files, options)
    builds = _loaded.setdefault(f"{folder}/{name}", [])
    if key not in builds:
        builds.append(key)
    number = builds.index(key)
    whole_name = name if number == 0 else f"{name}_v{number}"
    library = folder / f"{whole_name}.so"
    with open(folder / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        record = folder / f"{whole_name}.key"
        if not library.exists() or not record.exists() or record.read_text() != key:
            record.unlink(missing_ok=True)
            _build(whole_name, files, options, folder, verbose)
            with atomic_write(record) as file:
                file.write(key.encode())
    return _imported(whole_name, library, is_python_module)


def load_inline(
    name: str,
    cpp_sources: str | Sequence[str],
    musa_sources: str | Sequence[str] | None = None,
    functions: str | Sequence[str] | Mapping[str, str] | None = None,
    extra_cflags: Sequence[str] | None = None,
    extra_musa_cflags: Sequence[str] | None = None,
    extra_ldflags: Sequence[str] | None = None,
    extra_include_paths: Sequence[str] | None = None,
    build_directory: str | os.PathLike[str] | None = None,
    verbose: bool = False,
    is_python_module: bool = True,
    no_implicit_headers: bool = False,
) -> ModuleType | str:
    """Builds an extension from texts and imports it; see `load`.

    `#include <torch/extension.h>` and bindings of `functions` (names, or names with docstrings) are
    added to the C++ text, and torch's and MUSA's headers to the MUSA text. With
    `no_implicit_headers` no headers are added, which compiles faster.
    """
    folder = Path(build_directory) if build_directory is not None else _default_folder(name)
    folder.mkdir(parents=True, exist_ok=True)
    headers = [] if no_implicit_headers else ["#include <torch/extension.h>"]
    cpp = [*headers, *_texts(cpp_sources), *_bindings(functions)]
    sources = [_written(folder / "main.cpp", cpp)]
    if musa_sources:
        if not no_implicit_headers:
            headers = ["#include <torch/types.h>", "#include <musa_runtime.h>"]
        sources.append(_written(folder / "musa.mu", [*headers, *_texts(musa_sources)]))
    return load(
        name, sources, extra_cflags, extra_musa_cflags, extra_ldflags, extra_include_paths,
        folder, verbose, is_python_module,
    )  # fmt: skip


def _texts(sources: str | Sequence[str]) -> list[str]:
    return [sources] if isinstance(sources, str) else list(sources)


def _bindings(functions: str | Sequence[str] | Mapping[str, str] | None) -> list[str]:
    if functions is None:
        return []
    if isinstance(functions, str):
        functions = [functions]
    if not isinstance(functions, Mapping):
        functions = {each: each for each in functions}
    lines = [
        f"m.def({json.dumps(each)}, torch::wrap_pybind_function({each}), {json.dumps(text)});"
        for each, text in functions.items()
    ]
    return ["PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {", *lines, "}"]


def _written(path: Path, lines: Sequence[str]) -> str:
    text = "\n".join(lines) + "\n"
    if not path.exists() or path.read_text(encoding="utf-8") != text:
        path.write_text(text, encoding="utf-8")
    return str(path)


def _default_folder(name: str) -> Path:
    root = os.environ.get("TORCH_EXTENSIONS_DIR") or get_default_build_root()
    version = f"py{sys.version_info.major}{sys.version_info.minor}_musa"
    return Path(root, version, name)


def _key(files: Sequence[str], options: Mapping[str, Any]) -> str:
    parts = [torch.__version__, json.dumps(options, sort_keys=True)]
    parts.append(os.environ.get("TORCH_MUSA_ARCH_LIST", ""))
    digest = hashlib.sha256("\0".join(parts).encode())
    for file in files:
        digest.update(hashlib.sha256(file.encode() + b"\0" + Path(file).read_bytes()).digest())
    return digest.hexdigest()


def _build(
    name: str, files: Sequence[str], options: dict[str, Any], folder: Path, verbose: bool
) -> None:
    from setuptools import Distribution

    extension = MUSAExtension(name, files, **options)
    command = BuildExtension(
        Distribution({"name": name, "ext_modules": [extension]}), no_python_abi_suffix=True
    )
    command.build_lib = str(folder)
    command.build_temp = str(folder / "objects")
    command.force = True
    command.verbose = verbose
    command.ensure_finalized()
    command.run()


def _imported(name: str, library: Path, is_python_module: bool) -> ModuleType | str:
    if not is_python_module:
        torch.ops.load_library(str(library))
        return str(library)
    spec = importlib.util.spec_from_file_location(name, library)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
