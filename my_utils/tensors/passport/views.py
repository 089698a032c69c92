"""The sums of a view of a tensor, in memory or in a file, taken in pieces of a bounded size."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from ..._core import TensorSums, tensor_sums
from ...core.trusted_open import open_without_waiting
from ..dtypes import dtype_name
from .file import PassportError

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    Read = Callable[[Tensor], Tensor]

PIECE_BYTES = 64 << 20  # of a tensor in memory, copied to be cast
FILE_PIECE_BYTES = 2 << 20  # what was read is hashed while it is in the cache

# Types that a cast changes. Those of 8 bits and less are scaled, and mean nothing without scales.
_CAST = frozenset(("float64", "float32", "float16", "bfloat16"))


def cast_of(dtype: torch.dtype, wanted: torch.dtype | None) -> torch.dtype:
    """The type with which a tensor is hashed."""
    return wanted if wanted is not None and dtype_name(dtype) in _CAST else dtype


def sums_of_view(
    view: Tensor, shape: tuple[int, ...], at: tuple[int, ...], dtype: torch.dtype, read: Read | None
) -> TensorSums:
    """What the box that begins at `at` adds to the sums of a tensor of `shape`.

    view: the values; a meta tensor if `read` brings those of a view of it from a file. dtype: what
    they are cast to, piece by piece.
    """
    if read is None and view.dtype == dtype:
        return tensor_sums(view, shape, at)
    most = (PIECE_BYTES if read is None else FILE_PIECE_BYTES) // view.element_size()
    total: TensorSums | None = None
    for offset, piece in _pieces(view, (0,) * view.dim(), most):
        values = (piece if read is None else read(piece)).to(dtype)
        begin = tuple(first + more for first, more in zip(at, offset, strict=True))
        part = tensor_sums(values, shape, begin)
        total = part if total is None else total + part
    assert total is not None
    return total


def _pieces(
    view: Tensor, offset: tuple[int, ...], most: int
) -> Iterator[tuple[tuple[int, ...], Tensor]]:
    """Views of at most `most` elements from first to last in memory, and where they begin."""
    span = span_of(view)
    if span <= most or view.numel() <= 1:
        yield offset, view
        return
    dim = max(range(view.dim()), key=lambda dim: view.stride(dim) * (view.shape[dim] > 1))
    length = max(1, most // max(view.stride(dim), 1))
    if length >= view.shape[dim]:
        length = (view.shape[dim] + 1) // 2
    for first in range(0, view.shape[dim], length):
        part = view.narrow(dim, first, min(length, view.shape[dim] - first))
        begin = (*offset[:dim], offset[dim] + first, *offset[dim + 1 :])
        yield from _pieces(part, begin, most)


def span_of(view: Tensor) -> int:
    """Elements from the first to the last one in memory."""
    if view.numel() == 0:
        return 0
    sizes = zip(view.size(), view.stride(), strict=True)
    return 1 + sum((size - 1) * stride for size, stride in sizes)


class TensorFile:
    """A file of which pieces are read into one buffer, which the next read uses again."""

    def __init__(self, path: str) -> None:
        """OSError if it cannot be read."""
        self.path = path
        self.file = open(path, "rb", opener=open_without_waiting)  # noqa: SIM115 - closed by exit
        self.nbytes = os.fstat(self.file.fileno()).st_size
        self._buffer: Tensor | None = None

    def __enter__(self) -> TensorFile:
        return self

    def __exit__(self, *_: object) -> None:
        self.file.close()

    def read_bytes(self, begin: int, count: int, what: str) -> bytes:
        data = bytearray(count)
        self._fill(memoryview(data), begin, what)
        return bytes(data)

    def reader(self, base: int, name: str) -> Read:
        """Reads views of a meta tensor whose memory begins at byte `base`."""

        def read(view: Tensor) -> Tensor:
            import torch

            item = view.element_size()
            count = span_of(view) * item
            if self._buffer is None or self._buffer.numel() < count:
                self._buffer = torch.empty(count, dtype=torch.uint8)
            data = self._buffer[:count]
            begin = base + int(view.storage_offset()) * item
            self._fill(data.numpy().data, begin, name)
            values = data.view(view.dtype).as_strided(view.size(), view.stride())
            values = values.conj() if view.is_conj() else values
            return torch._neg_view(values) if view.is_neg() else values

        return read

    def _fill(self, data: memoryview, begin: int, what: str) -> None:
        done = 0
        while done < len(data):
            count = os.preadv(self.file.fileno(), [data[done:]], begin + done)
            if count == 0:
                raise PassportError(f"{self.path}: {what}: the file ends before its last byte")
            done += count
