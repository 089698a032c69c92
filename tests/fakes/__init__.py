"""Stand-ins for NVIDIA's driver and tools and for torch, in C; compiled by tests that need them."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent
ENGINE = FOLDER.parent.parent / "csrc" / "engine"

# For fake_cuda.c: the GPU kernels too, run on the processor.
WITH_KERNELS = ["-DFAKE_CUDA_KERNELS", f"-I{ENGINE}", f"-I{ENGINE / 'tests'}", "-lm"]


def compile_fake(source: str, library: Path, *options: str) -> Path:
    """Builds `source` of this folder as the shared object `library`; skips without a compiler."""
    compiler = os.environ.get("CC") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        pytest.skip("no C compiler for the stand-in library")
    command = [*compiler.split(), "-std=c11", "-O1", "-Wall", "-Wextra", "-shared", "-fPIC"]
    command += [f"-Wl,-soname,{library.name}", str(FOLDER / source), "-o", str(library)]
    subprocess.run([*command, *options, "-lpthread"], check=True)
    return library
