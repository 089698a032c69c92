"""The one list of compiler flags, for setup.py and for the Makefile.

As a program it prints the flags for one C source (`python3 csrc/flags.py FILE`), or with
`--sources FOLDER...` the sources below the folders that are compiled for the target: the machine
that MY_UTILS_MACHINE names in a cross build, and this one without it. It needs the standard library
only, so that the C tests run where nothing else is installed.
"""

from __future__ import annotations

import os
import platform
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

CFLAGS = [
    "-std=c11",
    "-O3",
    "-Wall",
    "-Wextra",
    "-fvisibility=hidden",
    "-ffp-contract=off",  # one result with and without fused multiply-add
    "-Wno-psabi",  # vectors wider than the processor's stay within inlined functions
    "-D_GNU_SOURCE",
]

# Warnings end the build where this variable says so: in the checks of the project, not where users
# build with compilers that nobody has tried yet.
WERROR_VARIABLE = "MY_UTILS_WERROR"
TRUE = {"1", "true", "yes", "on"}

# The processor that a cross build is for; its compiler is named with CC.
MACHINE_VARIABLE = "MY_UTILS_MACHINE"
CROSS_MACHINES = ("aarch64", "x86_64")

LIBRARIES = ["pthread", "dl", "m"]

# What the #include lines start from.
INCLUDE_FOLDERS = ["csrc/engine", "csrc/binding"]

# Folders of the engine that are not part of the product.
NOT_BUILT = {"tests", "fuzz"}

AVX2 = ["-mavx2", "-mbmi2", "-mf16c", "-mfma", "-mpclmul"]
AVX512 = [*AVX2, "-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl"]
NEON: list[str] = []  # compilers use it on every aarch64

# Files that run only behind a check of the processor, by the end of their names: (machine, flags).
# cpu.c checks for the same flags; its test is passed them.
TARGETS = {
    "_avx2": ("x86_64", AVX2),
    "_avx512": ("x86_64", AVX512),
    "_neon": ("aarch64", NEON),
}
TEST_OF_TARGETS = "test_cpu.c"

# Files through whose functions C++ exceptions of torch pass, by the beginning of their names.
UNWOUND = "torch_ops"

# Header, the macro that says that it is there, the package that brings it.
OPTIONAL_HEADERS = [
    ("nvtx3/nvToolsExt.h", "MU_HAVE_NVTX", "nvidia-nvtx"),
]


def machine() -> str:
    """The processor that the build is for. ValueError where the variable names an unknown one."""
    named = os.environ.get(MACHINE_VARIABLE, "").strip()
    if named and named not in CROSS_MACHINES:
        allowed = " or ".join(CROSS_MACHINES)
        raise ValueError(f"{MACHINE_VARIABLE} is {named!r}, but must be {allowed}")
    return named or platform.machine()


def sources(*folders: str) -> list[str]:
    """The C files below `folders`, relative to the project, without those for other machines.

    FileNotFoundError when one of the folders holds none, since a build would go on without them.
    """
    found = []
    for folder in folders:
        here = [path.relative_to(ROOT / folder) for path in (ROOT / folder).rglob("*.c")]
        product = sorted(path for path in here if path.parts[0] not in NOT_BUILT)
        if not product:
            raise FileNotFoundError(f"no C files below {ROOT / folder}")
        found += [f"{folder}/{path.as_posix()}" for path in product if is_for_target(path.name)]
    return found


def is_for_target(name: str) -> bool:
    """Whether a file is compiled for the machine that the build is for."""
    target = target_of(name)
    return target is None or target[0] == machine()


def target_of(name: str) -> tuple[str, list[str]] | None:
    """The machine and the flags of a file for one kind of processor, None for any other file."""
    stem = Path(name).stem
    for suffix, target in TARGETS.items():
        if stem.endswith(suffix):
            return target
    return None


def own_flags(source: str) -> list[str]:
    """What `source` is compiled with beyond the flags of all files."""
    target = target_of(source)
    flags = list(target[1]) if target else []
    if Path(source).name.startswith(UNWOUND):
        flags.append("-fexceptions")
    if Path(source).name == TEST_OF_TARGETS:
        flags += [f"-DFLAGS{end.upper()}={','.join(of)}" for end, (_, of) in TARGETS.items()]
    return flags


def header_folders(header: str) -> list[Path]:
    """Include folders of the installed nvidia packages that hold `header`, newest CUDA first."""
    found = []
    for entry in sys.path:
        for folder in sorted(Path(entry or ".").glob("nvidia/*/include"), reverse=True):
            if (folder / header).is_file():
                found.append(folder)
    return found


def optional_headers() -> tuple[list[str], list[str]]:
    """Flags for the headers that are there, and a line for each that is not."""
    flags: list[str] = []
    left_out = []
    for header, macro, package in OPTIONAL_HEADERS:
        folders = header_folders(header)
        if not folders:
            left_out.append(f"{header} not found (package {package}): built without {macro}")
            continue
        flags += [f"-D{macro}=1", "-isystem", str(folders[0])]
    return flags, left_out


def common_flags() -> list[str]:
    """What every file is compiled with."""
    strict = os.environ.get(WERROR_VARIABLE, "").strip().lower() in TRUE
    return CFLAGS + (["-Werror"] if strict else [])


def flags_for(source: str) -> list[str]:
    """All flags that compile `source`."""
    return common_flags() + optional_headers()[0] + own_flags(source)


def main(arguments: list[str]) -> None:
    if arguments[0] == "--sources":
        if not arguments[1:]:
            sys.exit("usage: flags.py --sources FOLDER...")
        print(*sources(*arguments[1:]))
    else:
        print(*flags_for(arguments[0]))


if __name__ == "__main__":
    main(sys.argv[1:])
