"""Extensions that mcc compiles: their folders and flags, and setuptools' command."""

from __future__ import annotations

import os
import shlex
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from ..core.arguments import check_bool
from ..core.extras import needs_torch
from ..core.reprs import short_repr
from . import _toolkit

with needs_torch("my_utils.musa.musa_extension"):
    import setuptools
    from setuptools.errors import CompileError
    from torch.utils import cpp_extension

KEYS = ("cxx", "mcc", "mcc_dlink")
FORCE_MCC = "force_mcc"
SUFFIXES = (".mu", ".muh")
STANDARD = "-std=c++20"  # what torch's headers want
TORCH_LIBRARIES = ("c10", "torch", "torch_cpu", "torch_python")


def include_paths(musa: bool = True) -> list[str]:
    """Folders of the headers of torch_musa, torch, MUSA and muDNN, those that are there.

    torch_musa's headers are ported copies of torch's, so its folders come first. `musa` False
    leaves out those of the toolkit.
    """
    torchs = [*_toolkit.torch_musa_folders("include"), *cpp_extension.include_paths()]
    return [*torchs, *(_toolkit.folders("include") if musa else [])]


def library_paths(musa: bool = True) -> list[str]:
    """Folders of the libraries of torch, torch_musa, MUSA and muDNN, those that are there.

    `musa` False leaves out those of the toolkit.
    """
    torchs = [*cpp_extension.library_paths(), *_toolkit.torch_musa_folders("lib")]
    return [*torchs, *(_toolkit.folders("lib") if musa else [])]


_LISTS = {"include_dirs", "library_dirs", "libraries", "extra_link_args"}


def MUSAExtension(
    name: str, sources: Sequence[str], *args: Any, **kwargs: Any
) -> setuptools.Extension:
    """A setuptools.Extension with the headers and libraries of torch and MUSA.

    Takes the arguments of CUDAExtension; `extra_compile_args` is a list for all compilers, or a
    dict with the keys `cxx`, `mcc` (for .mu) and `mcc_dlink` (a link of device code before the link
    of the extension). The element "force_mcc" of `cxx` compiles C++ sources with mcc as well, which
    code with `half` needs. Other keys raise ValueError, and a str in place of a list TypeError.
    `dlink=True` links device code first, against the libraries named in `dlink_libraries` (which
    imply it), searched for in `library_dirs`. The extension finds the libraries of torch and
    torch_musa where they are now (an rpath).
    """
    _check_list("sources", sources)
    for key in _LISTS & kwargs.keys():
        _check_list(key, kwargs[key])
    flags = kwargs.get("extra_compile_args")
    if isinstance(flags, Mapping):
        _check_keys(flags)
    else:
        _check_list("extra_compile_args", flags)
    dlink_libraries = _find_libraries("dlink_libraries", kwargs.pop("dlink_libraries", None))
    is_dlinked = check_bool("dlink", kwargs.pop("dlink", False)) or bool(dlink_libraries)
    for key, ours in {
        "include_dirs": include_paths(),
        "library_dirs": library_paths(),
        "libraries": [*TORCH_LIBRARIES, *_toolkit.libraries()],
        "extra_link_args": [f"-Wl,-rpath,{folder}" for folder in library_paths(musa=False)],
    }.items():
        kwargs[key] = [*(kwargs.get(key) or []), *ours]
    if is_dlinked:
        folders = [f"-L{folder}" for folder in kwargs["library_dirs"]]
        names = [f"-l{library}" for library in dlink_libraries]
        if not isinstance(flags, Mapping):
            flags = {"cxx": list(flags or []), "mcc": list(flags or [])}
        dlink = [*flags.get("mcc_dlink", []), "-dlink", *folders, *names]
        kwargs["extra_compile_args"] = {**flags, "mcc_dlink": dlink}
    kwargs["language"] = "c++"
    extension = setuptools.Extension(name, list(sources), *args, **kwargs)
    extension.uses_musa = True
    return extension


def _check_list(name: str, value: object) -> None:
    """TypeError for a str, of which each character would be one of the list."""
    if value is not None and (isinstance(value, str) or not isinstance(value, Iterable)):
        raise TypeError(f"{name} must be a list, not {value!r:.100}")


def _find_libraries(name: str, libraries: object) -> list[str]:
    if libraries is None:
        return []
    if isinstance(libraries, str) or not isinstance(libraries, Sequence):
        raise TypeError(f"{name} must be a list of names, not {libraries!r}")
    return [str(library) for library in libraries]


def _check_keys(flags: Mapping[str, object]) -> None:
    for key, value in flags.items():
        if key not in KEYS:
            hint = " (nvcc's flags go to mcc)" if key.startswith("nvcc") else ""
            raise ValueError(
                f"extra_compile_args: {key!r} is not allowed{hint}; allowed are {', '.join(KEYS)}"
            )
        if isinstance(value, str) or not isinstance(value, Sequence):
            raise TypeError(f"extra_compile_args[{key!r}] must be a list of flags, not {value!r}")


class BuildExtension(cpp_extension.BuildExtension):
    """torch's BuildExtension, which also compiles .mu with mcc. It builds others as torch does.

    `BuildExtension.with_options(no_python_abi_suffix=True, …)` works as there.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        # Its ninja file knows no third compiler; MAX_JOBS is kept here.
        super().__init__(*args, **{**kwargs, "use_ninja": False})

    def __repr__(self) -> str:
        return short_repr(self)

    def build_extensions(self) -> None:
        """Builds all extensions of the setup, those with MUSA sources with `mcc` too."""
        forced = {}
        for extension in self.extensions:
            forced[extension.name] = self._prepare(extension)
        self._forced = forced
        self.compiler.src_extensions += SUFFIXES
        super().build_extensions()

    def _prepare(self, extension: setuptools.Extension) -> bool:
        """All keys are there, `force_mcc` is not; whether it was."""
        if not getattr(extension, "uses_musa", False):
            return False
        flags = extension.extra_compile_args
        if not isinstance(flags, dict):
            flags = {"cxx": list(flags or []), "mcc": list(flags or [])}
        flags = {"cxx": [], "mcc": [], **{key: list(value) for key, value in flags.items()}}
        is_forced = FORCE_MCC in flags["cxx"]
        flags["cxx"] = [flag for flag in flags["cxx"] if flag != FORCE_MCC]
        extension.extra_compile_args = flags
        return is_forced

    def build_extension(self, ext: setuptools.Extension) -> None:
        """Builds one; an extension without MUSA sources as setuptools does."""
        if not getattr(ext, "uses_musa", False):
            super().build_extension(ext)
            return
        compiler = self.compiler
        torchs = compiler.compile
        compiler.compile = _Compilation(compiler, ext, self._forced[ext.name]).run
        try:
            super().build_extension(ext)
        finally:
            compiler.compile = torchs


class _Compilation:
    """The sources of one extension, each with its compiler, several at a time."""

    def __init__(self, compiler: Any, ext: setuptools.Extension, is_forced: bool) -> None:
        self.compiler = compiler
        self.flags: dict[str, list[str]] = ext.extra_compile_args
        self.is_forced = is_forced
        # torch has replaced it on the instance by another method
        self.compile_cxx = type(compiler)._compile.__get__(compiler)

    def run(
        self,
        sources: Sequence[str],
        output_dir: str | None = None,
        macros: Any = None,
        include_dirs: Any = None,
        debug: bool = False,
        extra_preargs: Any = None,
        extra_postargs: Any = None,
        depends: Any = None,
    ) -> list[str]:
        """In place of the compile of distutils; returns the objects."""
        _, objects, _, options, build = self.compiler._setup_compile(
            output_dir, macros, include_dirs, list(sources), depends, []
        )
        common = self.compiler._get_cc_args(options, debug, extra_preargs)
        with ThreadPoolExecutor(_jobs()) as pool:
            running = [
                pool.submit(self.compile_one, obj, build[obj], common, options)
                for obj in objects
                if obj in build
            ]
            for each in running:
                each.result()
        return [*objects, *self.device_link(objects, output_dir or ".", build)]

    def compile_one(
        self, obj: str, built_from: tuple[str, str], common: list[str], options: list[str]
    ) -> None:
        source, suffix = built_from
        if self.takes_mcc(source):
            language = [] if source.endswith(SUFFIXES) else ["-x", "musa"]
            flags = self.mcc_flags()
            command = [_toolkit.mcc_path(), *common, "-fPIC", *language, source, "-o", obj, *flags]
            _run(command)
            return
        flags = _with_standard(self.flags["cxx"])
        self.compile_cxx(obj, source, suffix, common, flags, options)

    def takes_mcc(self, source: str) -> bool:
        is_cxx = source.endswith((".cpp", ".cc", ".cxx", ".c++"))
        return source.endswith(SUFFIXES) or (self.is_forced and is_cxx)

    def mcc_flags(self) -> list[str]:
        given = self.flags["mcc"]
        return [*_with_standard(given), *_toolkit.arch_flags(given)]

    def device_link(self, objects: list[str], folder: str, build: Mapping[str, Any]) -> list[str]:
        """One more object where `mcc_dlink` has flags: the device code of the others, linked."""
        flags = self.flags.get("mcc_dlink")
        mine = [obj for obj in objects if obj not in build or self.takes_mcc(build[obj][0])]
        if not flags or not mine:
            return []
        linked = os.path.join(folder, "mcc_dlink.o")
        arch = _toolkit.arch_flags(flags)
        _run([_toolkit.mcc_path(), *mine, "-o", linked, "-fPIC", *flags, *arch])
        return [linked]


def _run(command: Sequence[str]) -> None:
    print(shlex.join(command), flush=True)
    status = subprocess.run(command, check=False).returncode
    if status != 0:
        raise CompileError(f"{command[0]} ended with status {status}: {shlex.join(command)}")


def _with_standard(flags: Sequence[str]) -> list[str]:
    has_one = any(flag.startswith("-std=") for flag in flags)
    return list(flags) if has_one else [*flags, STANDARD]


def _jobs() -> int:
    given = os.environ.get("MAX_JOBS", "")
    return max(1, int(given)) if given.isdigit() else len(os.sched_getaffinity(0))
