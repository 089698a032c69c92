"""Collects the elements of tensors and arrays for one safetensors file.

A blob is a piece of memory in row-major order that goes into the file under a name. Each is hashed
and written from where it lies; nothing is copied that is in order on the CPU already, unless
`copy` is set (asynchronous dumps, whose tensors may change before they are written).

Dimensions of stride 0 are stored once (`expand` in the tree), so that a mask of a billion elements
that all are the same one is one element in the file, too.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from .. import _core
from .form import STORED, Stored, digest
from .safetensors_file import RESERVED, Contents, head_of

if TYPE_CHECKING:
    from torch import Tensor


HEADER_BYTES_MAX = 100_000_000
ROOT_CHARS = len("/root/")


class Blobs:
    """The blobs of one dump, in the order in which they were added. Not thread-safe."""

    def __init__(self, *, copy: bool) -> None:
        self.copy = copy
        self.contents = Contents()
        self.sources: list[Any] = []  # what is hashed; keeps the memory alive
        self.events: list[Any] = []  # of copies from GPUs that are under way

    @property
    def size(self) -> int:
        """Bytes of all of them."""
        return sum(self.contents.sizes)

    def unique(self, name: str) -> str:
        if not name:
            name = "(root)"
        while name in self.contents.places or name == RESERVED:
            name += "'"
        return name

    def add_tensor(self, name: str, tensor: Tensor, stored: Stored) -> str:
        """Takes a strided tensor; what is returned is its name in the file."""
        data = self._in_order(tensor)
        shape = tuple(data.shape)
        if stored.last:
            shape += (stored.last,)
        size = data.numel() * stored.item_bytes
        return self.add(name, stored.name, shape, data.data_ptr(), size, data)

    def _in_order(self, tensor: Tensor) -> Tensor:
        if tensor.is_cpu:
            data = tensor.detach().contiguous()
            if self.copy and data.data_ptr() == tensor.data_ptr():
                data = data.clone()
            return data
        if self.copy and tensor.is_cuda:
            return self._from_gpu(tensor)
        return tensor.detach().to("cpu").contiguous()

    def _from_gpu(self, tensor: Tensor) -> Tensor:
        """A copy into pinned memory that the stream does in its turn; `wait` waits for it."""
        import torch

        data = tensor.detach().contiguous()
        host = torch.empty(data.shape, dtype=data.dtype, pin_memory=True)
        stream = torch.cuda.current_stream(data.device)
        host.copy_(data, non_blocking=True)
        # The allocator must not hand the memory to another stream before the copy is done.
        data.record_stream(stream)
        self.events.append(stream.record_event())
        return host

    def add_array(self, name: str, array: Any, code: str) -> str:
        """Takes a numpy array in row-major order, as elements of safetensors' type `code`."""
        if self.copy:
            array = array.copy()
        return self.add(
            name, code, array.shape, array.__array_interface__["data"][0], array.nbytes, array
        )

    def add_bytes(self, name: str, data: bytes) -> str:
        import numpy

        return self.add_array(name, numpy.frombuffer(data, dtype=numpy.uint8), "uint8")

    def add(
        self, name: str, code: str, shape: tuple[int, ...], address: int, size: int, owner: Any
    ) -> str:
        """Takes `size` bytes in row-major order that `owner` keeps alive."""
        if not name or name in self.contents.places or name == RESERVED:
            name = self.unique(name)
        self.contents.add(name, head_of(code, shape), address, size)
        self.sources.append(owner)
        return name

    def wait(self) -> None:
        """Until the copies from GPUs are done."""
        for event in self.events:
            event.synchronize()
        self.events.clear()

    def digests(self) -> list[str]:
        """In the order of adding."""
        if not self.sources:
            return []
        return [found.content for found in _core.tensor_hash(self.sources)]

    def write(self, path: str, metadata: dict[str, str], mode: int) -> dict[str, Any]:
        """Writes the file; returns its entry of the manifest."""
        with open(path, "wb") as file:
            os.fchmod(file.fileno(), mode)
            header = self.contents.write(file, metadata)
            size = os.fstat(file.fileno()).st_size
        expected = len(header) + self.size
        if len(header) - 8 > HEADER_BYTES_MAX or size != expected:
            raise OSError(f"{path} has {size} bytes, not {expected}")
        return {"bytes": size, "header_bytes": len(header), "header_digest": digest(header)}


def blob_name(path: str) -> str:
    """Blobs are named by where they are in the tree."""
    return path[ROOT_CHARS:]


def shrink_expanded(tensor: Any, strides: tuple[int, ...]) -> Any:
    """The part of a tensor or an array that is there once: index 0 of dimensions of stride 0."""
    sizes = tensor.shape
    for dim, stride in enumerate(strides):
        if stride == 0 and sizes[dim] > 1:
            tensor = tensor[(slice(None),) * dim + (slice(0, 1),)]
    return tensor


def plain_tensor(tensor: Tensor) -> Stored | None:
    """How a torch.Tensor is stored when it has strided memory of its own; else None."""
    import torch

    if tensor.layout is not torch.strided or tensor.is_meta or tensor.is_quantized:
        return None
    if tensor.is_nested or torch._is_zerotensor(tensor):
        return None
    if torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        return None
    if tensor.numel() and not _core.has_memory(tensor):
        return None
    return STORED.get(str(tensor.dtype).removeprefix("torch."))


def plain_dtype(dtype: Any) -> bool:
    """Whether the elements of a numpy array are bytes in its memory, all of known meaning."""
    return bool(
        not dtype.hasobject and dtype.isbuiltin != 2 and dtype.itemsize and dtype.kind != "T"
    )
