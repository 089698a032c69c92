"""Builds and loads `musa_backend.cpp`: a device "musa:0" of torch's PrivateUse1 key.

What torch knows of devices it knows for the whole process, so tests use it in processes of their
own, by `python -m tests.profilers.operators.musa_runs`.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import torch
from torch.utils import backend_registration

__all__ = ["COMPILER", "build", "load"]

COMPILER = os.environ.get("CXX", "g++")
SOURCE = Path(__file__).with_suffix(".cpp")
_FOLDER = Path(__file__).parents[2] / "build" / "tests"


def build() -> Path:
    """The library, compiled where it has not been yet; takes about 20 s of one core."""
    from torch.utils.cpp_extension import include_paths, library_paths

    abi = int(torch._C._GLIBCXX_USE_CXX11_ABI)
    flags = ["-O1", "-std=c++20", "-fPIC", f"-D_GLIBCXX_USE_CXX11_ABI={abi}"]
    flags += [f"-I{path}" for path in include_paths()]
    known = hashlib.sha256(f"{torch.__version__} {flags}".encode() + SOURCE.read_bytes())
    library = _FOLDER / f"musa_backend_{known.hexdigest()[:16]}.so"
    if library.exists():
        return library
    _FOLDER.mkdir(parents=True, exist_ok=True)
    made = library.with_suffix(f".{os.getpid()}.so")
    compiled = made.with_suffix(".o")
    cache = [path] if (path := shutil.which("ccache")) else []
    libraries = [f"-L{path}" for path in library_paths()] + ["-ltorch_cpu", "-lc10"]
    for command in (
        [*cache, COMPILER, *flags, "-c", str(SOURCE), "-o", str(compiled)],
        [COMPILER, "-shared", str(compiled), "-o", str(made), *libraries],
    ):
        subprocess.run(command, check=True, capture_output=True, text=True)
    compiled.unlink()
    made.replace(library)
    return library


class _Musa:
    """What torch expects at `torch.musa`."""

    @staticmethod
    def is_available() -> bool:
        return True

    @staticmethod
    def device_count() -> int:
        return 1

    @staticmethod
    def current_device() -> int:
        return 0

    @staticmethod
    def _is_in_bad_fork() -> bool:
        return False

    @staticmethod
    def manual_seed_all(seed: int) -> None:
        torch.default_generator.manual_seed(seed)

    @staticmethod
    def get_rng_state(device: Any = None) -> torch.Tensor:
        """Its numbers come from the generator of the CPU, where its operators are computed."""
        return torch.get_rng_state()

    @staticmethod
    def set_rng_state(state: torch.Tensor, device: Any = None) -> None:
        torch.set_rng_state(state)


def load() -> None:
    """Gives this process the device."""
    torch.ops.load_library(str(build()))
    backend_registration.rename_privateuse1_backend("musa")
    torch._register_device_module("musa", _Musa())
    backend_registration.generate_methods_for_privateuse1_backend(for_storage=False)
