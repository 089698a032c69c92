"""The operators where torch is too old, or fails: a library in C stands for it.

Every function of torch that a kernel calls is made to fail in turn; the kernel must say so, and
free what it owns.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from ..conftest import RunPython
from ..fakes import compile_fake

pytestmark = pytest.mark.no_torch

PROGRAM = """
import ctypes, sys
from my_utils import _core

torch = ctypes.CDLL(sys.argv[1], mode=ctypes.RTLD_GLOBAL)
torch.fake_message.restype = ctypes.c_char_p
torch.fake_reduce.restype = torch.fake_hash_into.restype = ctypes.c_int64
CPU, CUDA = 0, 1

def message():
    assert torch.fake_live() == 0, torch.fake_live()
    return torch.fake_message().decode()
"""

Run = Callable[[str], "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compile_fake("fake_torch.c", tmp_path_factory.mktemp("torch") / "libtorch_cpu.so")


@pytest.fixture
def run(library: Path, run_python: RunPython) -> Run:
    return lambda text: run_python("-c", PROGRAM + text, str(library))


def lines(result: subprocess.CompletedProcess[str]) -> list[str]:
    assert (result.returncode, result.stderr) == (0, "")
    return result.stdout.splitlines()


def test_the_stand_in_works(run: Run) -> None:
    text = """
_core.register_torch_kernels()
expected = int(_core.tensor_hash(bytes(12)).content[16:], 16)
for first in (torch.fake_reduce(b"CPU", b"tensor_hash", CPU), torch.fake_hash_into(b"CPU", 0, 0)):
    assert first % 2**64 == expected
    assert message() == ""
assert torch.fake_reduce(b"CPU", b"nan_inf_count", CPU) == 0
assert message() == ""
"""
    assert lines(run(text)) == []


def test_every_call_that_fails(run: Run) -> None:
    text = """
_core.register_torch_kernels()
calls = {
    "tensor_hash": lambda: torch.fake_reduce(b"CPU", b"tensor_hash", CPU),
    "stats": lambda: torch.fake_reduce(b"CPU", b"stats", CPU),
    "nan_inf_count": lambda: torch.fake_reduce(b"CPU", b"nan_inf_count", CPU),
    "hash_into": lambda: torch.fake_hash_into(b"CPU", CPU, CPU),
}
for name, call in calls.items():
    for successes in range(100):
        torch.fake_fail_after(successes)
        call()
        if not message():
            break
        assert message().startswith("my_utils::" + name + ": "), message()
    print(name, successes)
"""
    # Seven facts of a tensor, two of its storage, and the place to write to. A result has to be
    # made first.
    assert lines(run(text)) == ["tensor_hash 11", "stats 11", "nan_inf_count 11", "hash_into 19"]


def test_a_gpu_tensor_without_cuda(run: Run) -> None:
    text = """
_core.register_torch_kernels()
for name in (b"tensor_hash", b"stats", b"nan_inf_count"):
    torch.fake_reduce(b"CUDA", name, CUDA)
    print(message())
torch.fake_hash_into(b"CUDA", CUDA, CUDA)
print(message())
torch.fake_hash_into(b"CUDA", CUDA, CPU)
print(message())
"""
    no_stream = "this torch has no CUDA stream to work on"
    names = ["tensor_hash", "stats", "nan_inf_count", "hash_into"]
    assert lines(run(text)) == [
        *(f"my_utils::{name}: {no_stream}" for name in names),
        "my_utils::hash_into: out must be on the device of x",
    ]


def test_kernels_that_torch_does_not_take(run: Run) -> None:
    text = """
for successes in (0, 1, 2):
    torch.fake_fail_after(successes)
    try:
        _core.register_torch_kernels()
    except RuntimeError as error:
        print(error)
"""
    assert lines(run(text)) == [
        "torch takes no kernels for CPU",
        "torch does not take the kernel of tensor_hash for CPU",
        "torch does not take the kernel of hash_into for CPU",
    ]


def test_a_torch_that_is_too_old(tmp_path: Path, run_python: RunPython) -> None:
    library = compile_fake("fake_torch.c", tmp_path / "libtorch_cpu.so", "-DOLD")
    text = """
for _ in range(2):
    try:
        _core.register_torch_kernels()
    except RuntimeError as error:
        print(error)
print(_core.tensor_hash(b"").content)
"""
    assert lines(run_python("-c", PROGRAM + text, str(library))) == [
        *["the operators need torch 2.10 or newer: this one has no torch_get_mutable_data_ptr"] * 2,
        "fac093705c7c9f2b9ee5bd6e6290f795",
    ]
