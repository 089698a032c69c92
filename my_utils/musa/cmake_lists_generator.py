"""Writes a CMakeLists.txt that builds MUSA and C++ sources into a library.

>>> import tempfile
>>> folder = tempfile.mkdtemp()
>>> path = CMakeListsGenerator(["/src/k.mu"], ["/src/include"], output=folder).generate()
>>> "musa_add_library(musa_plugin SHARED" in path.read_text()
True
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from ..core.arguments import check_bool, check_str, check_str_or_none
from ..core.files import atomic_write
from ..core.reprs import short_repr

__all__ = ["CMakeListsGenerator"]

StrPath = str | os.PathLike[str]
NAME = re.compile(r"[A-Za-z0-9_.+-]+")
MACRO = re.compile(r"[A-Za-z_]\w*(=.*)?", re.DOTALL)
# Where torch and torch_musa are, asked without importing them; nothing for what is not there.
TORCH = """
find_package(Python3 COMPONENTS Interpreter)
set(TORCH_LIBRARY_FILES)
if(Python3_FOUND)
  foreach(package torch torch_musa)
    execute_process(
      COMMAND ${Python3_EXECUTABLE} -c
        "import importlib.util, os
found = importlib.util.find_spec('${package}')
print(os.path.dirname(found.origin) if found else '')"
      OUTPUT_VARIABLE ${package}_folder OUTPUT_STRIP_TRAILING_WHITESPACE)
  endforeach()
  execute_process(
    COMMAND ${Python3_EXECUTABLE} -c "import sysconfig; print(sysconfig.get_path('include'))"
    OUTPUT_VARIABLE python_include OUTPUT_STRIP_TRAILING_WHITESPACE)
endif()
# The headers of torch_musa are torch's, ported: they go before those of torch.
if(torch_musa_folder)
  set(ported ${torch_musa_folder}/share/generated_cuda_compatible)
  include_directories(
    ${ported}/aten/src ${ported}/include ${ported}/include/torch/csrc/api/include
    ${torch_musa_folder}/share/torch_musa_codegen ${torch_musa_folder}/..)
  file(GLOB found ${torch_musa_folder}/lib/libmusa_python.so)
  list(APPEND TORCH_LIBRARY_FILES ${found})
endif()
if(torch_folder)
  include_directories(
    ${torch_folder}/include ${torch_folder}/include/torch/csrc/api/include ${python_include})
  foreach(library c10 torch torch_cpu torch_python)
    file(GLOB found ${torch_folder}/lib/lib${library}.so)
    list(APPEND TORCH_LIBRARY_FILES ${found})
  endforeach()
endif()
"""


class CMakeListsGenerator:
    """A CMakeLists.txt for one library.

    Parameters:
        sources: files; .mu go through mcc, the others through the host's compiler.
        include_dirs: folders of headers.
        link_libraries: files or names of libraries, a list or one alone.
        define_macros: names, `NAME=VALUE`, pairs of both, or a mapping; None for none.
        project_name: of the CMake project.
        plugin_name: of the library, which becomes lib<plugin_name>.so.
        customized_cmake_lists: your own text, written as it is instead of all that.
        cxx_standard: 20, as torch's headers want it.
        mcc_flags: further flags for mcc.
        with_torch: uses the headers and libraries of torch and torch_musa, where the Python that
            CMake finds (or `-DPython3_EXECUTABLE=…`) has them.
        output: where `generate` writes; the working directory by default.

    Relative paths are taken from the working directory. Wrong arguments raise TypeError or
    ValueError with their name.
    """

    def __init__(
        self,
        sources: Sequence[StrPath],
        include_dirs: Sequence[StrPath] = (),
        link_libraries: StrPath | Sequence[StrPath] = (),
        define_macros: Sequence[str | tuple[str, str | None]] | Mapping[str, str] | None = None,
        project_name: str = "musa_plugin_project",
        plugin_name: str = "musa_plugin",
        customized_cmake_lists: str | None = None,
        *,
        cxx_standard: int = 20,
        mcc_flags: Sequence[str] = (),
        with_torch: bool = True,
        output: StrPath = ".",
    ) -> None:
        self.sources = _paths("sources", sources)
        self.customized_cmake_lists = check_str_or_none(
            "customized_cmake_lists", customized_cmake_lists
        )
        self.with_torch = check_bool("with_torch", with_torch)
        if not self.sources and customized_cmake_lists is None:
            raise ValueError("sources: at least one file is needed")
        self.include_dirs = _paths("include_dirs", include_dirs)
        self.link_libraries = _libraries(link_libraries)
        self.macros = _macros(define_macros)
        self.project_name = _name("project_name", project_name)
        self.plugin_name = _name("plugin_name", plugin_name)
        if isinstance(cxx_standard, bool) or cxx_standard not in (11, 14, 17, 20, 23, 26):
            raise ValueError(f"cxx_standard must be 11, 14, 17, 20, 23 or 26, not {cxx_standard!r}")
        self.cxx_standard = cxx_standard
        self.mcc_flags = _strings("mcc_flags", mcc_flags)
        self.output = Path(output)

    def __repr__(self) -> str:
        return short_repr(self, "project_name", "plugin_name", "sources")

    def generate(self) -> Path:
        """Writes CMakeLists.txt, whole or not at all; returns its path."""
        self.output.mkdir(parents=True, exist_ok=True)
        path = self.output / "CMakeLists.txt"
        with atomic_write(path) as file:
            file.write(self.text().encode())
        return path

    def text(self) -> str:
        """What `generate` writes."""
        if self.customized_cmake_lists is not None:
            return self.customized_cmake_lists
        target = self.plugin_name
        lines = [
            "cmake_minimum_required(VERSION 3.18)",
            f"project({self.project_name} LANGUAGES C CXX)",
            "",
            "if(NOT DEFINED MUSA_HOME)",
            "  if(DEFINED ENV{MUSA_HOME})",
            "    set(MUSA_HOME $ENV{MUSA_HOME})",
            "  elseif(DEFINED ENV{MUSA_PATH})",
            "    set(MUSA_HOME $ENV{MUSA_PATH})",
            "  else()",
            "    set(MUSA_HOME /usr/local/musa)",
            "  endif()",
            "endif()",
            "list(APPEND CMAKE_MODULE_PATH ${MUSA_HOME}/cmake)",
            "find_package(MUSA REQUIRED)",
            "",
            f"set(CMAKE_CXX_STANDARD {self.cxx_standard})",
            "set(CMAKE_CXX_STANDARD_REQUIRED ON)",
            "set(CMAKE_POSITION_INDEPENDENT_CODE ON)",
        ]
        if self.mcc_flags:
            lines.append(f"list(APPEND MUSA_MCC_FLAGS {_quoted(self.mcc_flags)})")
        if self.with_torch:
            lines += TORCH.splitlines()
        # The module reads folders and macros of the directory for mcc, of the target for C++.
        if self.include_dirs:
            lines.append(f"include_directories({_quoted(self.include_dirs)})")
        if self.macros:
            lines.append(f"add_definitions({_quoted(['-D' + macro for macro in self.macros])})")
        lines += [
            "",
            f"musa_add_library({target} SHARED",
            *(f"  {_quoted([source])}" for source in self.sources),
            ")",
        ]
        if self.link_libraries:
            lines.append(f"target_link_libraries({target} {_quoted(self.link_libraries)})")
        if self.with_torch:
            lines.append(f"target_link_libraries({target} ${{TORCH_LIBRARY_FILES}})")
        return "\n".join(lines) + "\n"


def _quoted(words: Sequence[str]) -> str:
    """Arguments as CMake reads them back: nothing in them is a variable or ends a string."""
    return " ".join('"' + re.sub(r'(["\\$])', r"\\\1", word) + '"' for word in words)


def _strings(name: str, values: object) -> list[str]:
    if isinstance(values, str) or not isinstance(values, Sequence):
        raise TypeError(f"{name} must be a list, not {values!r}")
    for value in values:
        if not isinstance(value, str):
            raise TypeError(f"{name} must be a list of str, not {value!r} in it")
    return list(values)


def _paths(name: str, paths: object) -> list[str]:
    if isinstance(paths, str | os.PathLike) or not isinstance(paths, Sequence):
        raise TypeError(f"{name} must be a list of paths, not {paths!r}")
    for path in paths:
        if not isinstance(path, str | os.PathLike):
            raise TypeError(f"{name} must be a list of paths, not {path!r} in it")
    return [os.path.abspath(path) for path in paths]


def _libraries(libraries: object) -> list[str]:
    if isinstance(libraries, str | os.PathLike):
        libraries = [libraries]
    if not isinstance(libraries, Sequence):
        raise TypeError(f"link_libraries must be a library or a list, not {libraries!r}")
    found = []
    for library in libraries:
        if not isinstance(library, str | os.PathLike):
            raise TypeError(f"link_libraries must be a list of paths or names, not {library!r}")
        text = os.fspath(library)
        found.append(os.path.abspath(text) if os.sep in text else text)
    return found


def _macros(macros: object) -> list[str]:
    if macros is None:
        return []
    if isinstance(macros, Mapping):
        macros = list(macros.items())
    if isinstance(macros, str) or not isinstance(macros, Sequence):
        raise TypeError(f"define_macros must be a list or a mapping, not {macros!r}")
    found = []
    for macro in macros:
        if isinstance(macro, tuple) and len(macro) == 2:
            name, value = macro
            macro = name if value is None else f"{name}={value}"
        if not isinstance(macro, str):
            raise TypeError(f"define_macros: a macro is NAME, NAME=VALUE or a pair, not {macro!r}")
        macro = macro.removeprefix("-D")
        if not MACRO.fullmatch(macro):
            raise ValueError(f"define_macros: {macro!r} is not the name of a macro")
        found.append(macro)
    return found


def _name(name: str, value: object) -> str:
    text = check_str(name, value)
    if not NAME.fullmatch(text):
        raise ValueError(f"{name}={text!r}: letters, digits and _ . + - are allowed")
    return text
