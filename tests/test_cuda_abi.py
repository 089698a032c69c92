"""The types that the engine declares for the CUDA driver are those of NVIDIA's cuda.h.

The build takes nothing from cuda.h; these tests do, where the package nvidia-cuda-runtime has it.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from .conftest import ROOT

pytestmark = pytest.mark.no_torch

ENGINE = ROOT / "csrc" / "engine"
POOL_FIELDS = ["allocType", "handleTypes", "location", "win32SecurityAttributes"]


def own_header() -> Path:
    [header] = ENGINE.rglob("cuda_abi.h")
    return header


def compiler() -> list[str]:
    return shlex.split(os.environ.get("CC", "gcc"))


@pytest.fixture(scope="module")
def nvidia_header() -> Path:
    for entry in sys.path:
        for found in sorted(Path(entry or ".").glob("nvidia/*/include/cuda.h"), reverse=True):
            return found
    pytest.skip("cuda.h is not installed (package nvidia-cuda-runtime)")


def figures() -> list[str]:
    """C expressions for all that own_header declares."""
    text = own_header().read_text(encoding="utf-8")
    values = re.findall(r"\b(CU\w+) = \d+", text)
    types = re.findall(r"^(?:typedef .*?|\} )\*?(\w+);$", text, re.MULTILINE)
    assert len(values) > 15
    assert len(types) > 15
    offsets = [f"offsetof(CUmemPoolProps, {field})" for field in POOL_FIELDS]
    offsets += [f"offsetof(CUmemLocation, {field})" for field in ("type", "id")]
    return [*values, *(f"sizeof({name})" for name in types), *offsets]


def printed(header: Path, folder: Path) -> list[str]:
    """Each figure with its value, as a program says that includes `header`."""
    lines = [f'    printf("%s %lld\\n", "{figure}", (long long){figure});' for figure in figures()]
    source = folder / "probe.c"
    source.write_text(
        f'#include <stddef.h>\n#include <stdio.h>\n#include "{header}"\n'
        + "int main(void) {\n"
        + "\n".join(lines)
        + "\n    return 0;\n}\n",
        encoding="utf-8",
    )
    program = folder / "probe"
    subprocess.run([*compiler(), "-std=c11", str(source), "-o", str(program)], check=True)
    done = subprocess.run([str(program)], capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


def test_values_sizes_and_offsets_are_nvidias(nvidia_header: Path, tmp_path: Path) -> None:
    assert printed(own_header(), tmp_path) == printed(nvidia_header, tmp_path)


def test_the_engine_compiles_against_nvidias_header(nvidia_header: Path, tmp_path: Path) -> None:
    """With its types in place of ours: constants that do not exist, and types that do not fit."""
    users = [path for path in ENGINE.rglob("*.c") if re.match("cuda_|gpu_", path.name)]
    users = [path for path in users if path.parent.name not in ("tests", "fuzz")]
    assert len(users) > 8
    instead = ["-DMU_CUDA_ABI_H", "-include", str(nvidia_header)]
    flags = ["-std=c11", "-D_GNU_SOURCE", "-Wall", "-Werror", "-fsyntax-only", f"-I{ENGINE}"]
    subprocess.run([*compiler(), *flags, *instead, *map(str, users)], check=True)
