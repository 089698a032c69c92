"""The file of the elements is what the package safetensors writes, byte for byte."""

from __future__ import annotations

import errno
import random
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("safetensors", reason="safetensors is not installed")

import safetensors
import torch

from my_utils import _core
from my_utils.tensors.dtypes import STORED
from my_utils.tensors.dumps.blobs import Blobs

pytestmark = pytest.mark.c_code

ODD_NAMES = ["ö", 'a"b\\c', "line\nend\x01\x7f", "\u2028", "a/b", "a.b", "aa", "Z", "\U0001f600"]


def written(tensors: dict[str, tuple[str, torch.Tensor]], path: Path, about: dict[str, str]) -> int:
    blobs = Blobs(copy=False)
    for name, (dtype, tensor) in tensors.items():
        size = tensor.numel() * tensor.element_size()
        blobs.add(name, dtype, tuple(tensor.shape), tensor.data_ptr(), size, tensor)
    with path.open("wb") as file:
        return int(blobs.write(file, about)["header_bytes"])


def expected(tensors: dict[str, tuple[str, torch.Tensor]], about: dict[str, str]) -> bytes:
    specs = {
        name: safetensors.TensorSpec(
            dtype=dtype, shape=tuple(tensor.shape), data_ptr=tensor.data_ptr(),
            data_len=tensor.numel() * tensor.element_size(),
        )
        for name, (dtype, tensor) in tensors.items()
    }  # fmt: skip
    return bytes(safetensors.serialize(specs, about))


@pytest.mark.parametrize("seed", range(20))
def test_the_bytes_are_those_of_the_package(seed: int, tmp_path: Path) -> None:
    rng = random.Random(seed)
    kinds = sorted({stored.name for stored in STORED.values()})
    names = ODD_NAMES + [f"weight_{number}" for number in range(40)]
    rng.shuffle(names)
    tensors = {}
    for name in names:
        dtype = rng.choice(kinds)
        shape = [rng.randrange(4) for _ in range(rng.randrange(4))]
        item = torch.empty(0, dtype=getattr(torch, dtype)).element_size()
        raw = torch.frombuffer(bytearray(rng.randbytes(27 * 16)), dtype=torch.uint8)
        elements = torch.Size(shape).numel()
        tensors[name] = dtype, raw[: elements * item].view(getattr(torch, dtype)).reshape(shape)
    path = tmp_path / "tensors.safetensors"
    length = written(tensors, path, {"format": 'of "ours"'})
    found = path.read_bytes()
    assert found == expected(tensors, {"format": 'of "ours"'})
    assert length == 8 + int.from_bytes(found[:8], "little")


def test_more_pieces_than_a_call_takes(tmp_path: Path) -> None:
    tensors = {f"{number:05d}": ("int32", torch.full((3,), number, dtype=torch.int32))
               for number in range(5000)}  # fmt: skip
    path = tmp_path / "tensors.safetensors"
    written(tensors, path, {"a": "b"})
    assert path.read_bytes() == expected(tensors, {"a": "b"})


@pytest.mark.parametrize(
    ("addresses", "sizes", "error", "text"),
    [
        ([], (), TypeError, "addresses and sizes must be tuples of int"),
        ((1, 2), (1,), ValueError, "addresses and sizes must be of one length, not 2 and 1"),
        ((0,), (4,), ValueError, "addresses must not be 0 where there are bytes"),
        (("x",), (4,), TypeError, "addresses must be int, not str"),
        ((1,), (-1,), ValueError, "sizes must be"),
    ],
)
def test_wrong_pieces(
    addresses: object, sizes: object, error: type[Exception], text: str, tmp_path: Path
) -> None:
    with (tmp_path / "file").open("wb") as file, pytest.raises(error, match=text):
        _core.write_memory(file.fileno(), addresses, sizes)  # type: ignore[arg-type]
    assert (tmp_path / "file").read_bytes() == b""


def test_a_full_disk_raises_its_error() -> None:
    tensor = torch.ones(4)
    with open("/dev/full", "wb", buffering=0) as full, pytest.raises(OSError) as caught:
        _core.write_memory(full.fileno(), (tensor.data_ptr(),), (16,))
    assert caught.value.errno == errno.ENOSPC
