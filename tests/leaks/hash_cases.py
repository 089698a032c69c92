"""The leak cases of the tensor hash."""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Callable, Iterator
from pathlib import Path

import torch

from my_utils import _core

from .harness import case


@case("tensor_hash", repeat=500)
def hash_tensors(folder: Path) -> Iterator[Callable[[], object]]:
    small, matrix, big = torch.randn(64), torch.randn(40, 50), torch.randn(2**18 + 1)
    complex_numbers = torch.randn(9, dtype=torch.complex64)

    def action() -> None:
        for tensor in (small, matrix.T, complex_numbers.conj(), big, b"bytes", small.numpy()[::-1]):
            _core.tensor_hash(tensor)
        _core.tensor_hash([small, matrix.T, big, small.numpy()])
        _core.tensor_hash(())

    yield action


@case("row_hashes", repeat=500)
def hash_rows(folder: Path) -> Iterator[Callable[[], object]]:
    matrix, big = torch.randn(40, 50), torch.randn(4, 2**16)
    meta = torch.empty(3, 3, device="meta")

    def action() -> None:
        for tensor in (matrix, matrix.T, big, matrix.numpy()[::-1]):
            _core.row_hashes(tensor)
            _core.row_hashes(tensor, False)
        for wrong in (matrix[0, 0], meta, None):
            with contextlib.suppress(TypeError, ValueError):
                _core.row_hashes(wrong)
                raise AssertionError(f"{wrong!r} was hashed")

    yield action


@case("has_memory")
def ask_for_memory(folder: Path) -> Iterator[Callable[[], object]]:
    plain, meta = torch.randn(64), torch.empty(3, device="meta")
    sparse = torch.ones(2, 2).to_sparse()

    def action() -> None:
        assert _core.has_memory(plain[1:]) and not _core.has_memory(meta[1:])
        assert not _core.has_memory(sparse)
        with contextlib.suppress(TypeError):
            _core.has_memory("text")
            raise AssertionError("a text has memory")

    yield action


@case("write_memory")
def write_memory(folder: Path) -> Iterator[Callable[[], object]]:
    tensors = [torch.randn(64) for _ in range(20)]
    addresses = tuple(tensor.data_ptr() for tensor in tensors)
    sizes = tuple(4 * tensor.numel() for tensor in tensors)
    with open("/dev/null", "wb") as nowhere, open("/dev/full", "wb", buffering=0) as full:

        def action() -> None:
            _core.write_memory(nowhere.fileno(), addresses, sizes)
            with contextlib.suppress(OSError):
                _core.write_memory(full.fileno(), addresses, sizes)
                raise AssertionError("a full disk took it")
            with contextlib.suppress(ValueError):
                _core.write_memory(nowhere.fileno(), (*addresses[:-1], -1), sizes)
                raise AssertionError("there is no address -1")

        yield action


@case("tensor_hash")
def hash_what_is_no_tensor(folder: Path) -> Iterator[Callable[[], object]]:
    small = torch.randn(64)

    def action() -> None:
        for wrong in (None, [small, None], torch.empty(3, device="meta"), [small, "text"]):
            with contextlib.suppress(TypeError):
                _core.tensor_hash(wrong)
                raise AssertionError(f"{wrong!r} was hashed")

    yield action


@case(
    "TensorDigest",
    "TensorDigest.content",
    "TensorDigest.dtype",
    "TensorDigest.shape",
    "TensorDigest.combined",
    "TensorDigest.__repr__",
    "TensorDigest.__hash__",
    "TensorDigest.__reduce__",
    "TensorDigest.__eq__",
    "TensorDigest.__ne__",
    "TensorDigest.__lt__",
    "TensorDigest.__le__",
    "TensorDigest.__gt__",
    "TensorDigest.__ge__",
)
def use_digests(folder: Path) -> Iterator[Callable[[], object]]:
    shape = (2000, 3000, 0)

    def action() -> None:
        digest = _core.TensorDigest("0123456789abcdef" * 2, "float32", shape)
        other = _core.TensorDigest(digest.combined, digest.dtype, list(digest.shape))
        assert digest != other and digest == digest.__reduce__()[0](*digest.__reduce__()[1])
        assert hash(digest) != hash(other) and repr(digest) != repr(other) and digest.content
        for compare in (operator.lt, operator.le, operator.gt, operator.ge):
            with contextlib.suppress(TypeError):
                compare(digest, other)  # type: ignore[arg-type]
        for wrong in (("0" * 31, "int8", ()), ("0" * 32, "x", ()), ("0" * 32, "int8", (1, -1))):
            with contextlib.suppress(ValueError):
                _core.TensorDigest(*wrong)

    yield action


@case(
    "tensor_sums",
    "bytes_sums",
    "sums_digest",
    "differing_block",
    "TensorSums",
    "TensorSums.sums",
    "TensorSums.nbytes",
    "TensorSums.total",
    "TensorSums.cut",
    "TensorSums.__add__",
    "TensorSums.__radd__",
    "TensorSums.__repr__",
    "TensorSums.__hash__",
    "TensorSums.__reduce__",
    "TensorSums.__eq__",
    "TensorSums.__ne__",
    "TensorSums.__lt__",
    "TensorSums.__le__",
    "TensorSums.__gt__",
    "TensorSums.__ge__",
)
def sum_parts(folder: Path) -> Iterator[Callable[[], object]]:
    x = torch.randn(40, 101)

    def action() -> None:
        left = _core.tensor_sums(x[:, :47], (40, 101))
        right = _core.tensor_sums(x.T[47:].T, x.shape, at=(0, 47))
        whole = left + right
        assert whole == _core.bytes_sums(x.numpy().data, 0, 40 * 101 * 4) and left.cut
        assert left != left.__reduce__()[0](*right.__reduce__()[1])
        assert repr(left) != repr(right) and hash(left) != hash(right)
        assert (whole.nbytes, whole.total, len(whole.sums)) == (16160, 16160, 8)
        _core.sums_digest(whole, "float32", (40, 101))
        assert _core.differing_block(whole, _core.tensor_sums(x + 1)) is None
        for compare in (operator.lt, operator.le, operator.gt, operator.ge, operator.add):
            with contextlib.suppress(TypeError):
                compare(left, 3)  # type: ignore[arg-type]
                raise AssertionError("a part was compared with a number")
        for function, *wrong in (
            (operator.add, left, left),
            (operator.add, left, _core.tensor_sums(x[:2])),
            (_core.sums_digest, left, "float32", (40, 101)),
            (_core.sums_digest, left, "float32", (40, 102)),
            (_core.differing_block, left, whole),
            (_core.tensor_sums, x, (40, 100)),
            (_core.tensor_sums, x, (40,)),
            (_core.bytes_sums, x.T, 0, 2**20),
            (_core.TensorSums, (0,) * 7, 0, 0),
            (_core.TensorSums, (0,) * 8, 0, 8, [(0, b"123"), (2, b"4")]),
            (_core.TensorSums, (0,) * 8, 0, 8, [(0, b"123"), (2, "4")]),
            (_core.TensorSums, (-1,) * 8, 0, 8),
        ):
            with contextlib.suppress(TypeError, ValueError):
                function(*wrong)
                raise AssertionError(f"{function} took {wrong}")

    yield action
