"""Collects the elements of tensors and arrays, and writes them to one safetensors file.

A blob is a piece of memory in row-major order that goes into the file under a name. Each is hashed
and written directly; nothing is copied that is in order on the CPU already, unless
`copy` is set (asynchronous dumps, whose tensors may change before they are written).

Dimensions of stride 0 are stored once (`expand` in the tree), so that a mask of a billion elements
that all are the same one is one element in the file, too.

The file has the bytes that the package safetensors would write. The package wants an object for
each tensor, and these take as long as half of a dump of small ones.

    length of the header, u64 | header, JSON, padded to 8 bytes | the elements, without gaps
"""

from __future__ import annotations

import os
from json.encoder import encode_basestring as quote
from typing import IO, TYPE_CHECKING, Any

from ... import _core
from ..dtypes import SAFETENSORS_CODES, STORED, Stored, dtype_name
from ..tensor_kinds import as_bytes, why_unreadable
from .form import digest

if TYPE_CHECKING:
    from torch import Tensor


HEADER_BYTES_MAX = 100_000_000
ROOT_CHARS = len("/root/")
RESERVED = "__metadata__"  # the key of the header that is not a tensor
ALIGNMENT = 8  # bytes

_CODES = {stored.name: stored.code for stored in STORED.values()}
_RANKS = {code: rank for rank, code in enumerate(SAFETENSORS_CODES)}


def head_of(dtype: str, shape: tuple[int, ...]) -> str:
    """What the header says of tensors of one type and shape, up to their offsets.

    >>> head_of("float32", (2, 3))
    '{"dtype":"F32","shape":[2,3],"data_offsets":'
    """
    sizes = ",".join(map(str, shape))
    return f'{{"dtype":"{_CODES[dtype]}","shape":[{sizes}],"data_offsets":'


class Blobs:
    """The blobs of one dump, in the order in which they were added. Not thread-safe."""

    def __init__(self, *, copy: bool) -> None:
        self.copy = copy
        self.places: dict[str, int] = {}  # by name, where it is in the lists
        self.heads: list[str] = []
        self.addresses: list[int] = []
        self.sizes: list[int] = []  # bytes
        self.sources: list[Any] = []  # what is hashed; keeps the memory alive
        self.events: list[Any] = []  # of copies from GPUs that are under way

    @property
    def size(self) -> int:
        """Bytes of all of them."""
        return sum(self.sizes)

    def unique(self, name: str) -> str:
        if not name:
            name = "(root)"
        while name in self.places or name == RESERVED:
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
        if not name or name in self.places or name == RESERVED:
            name = self.unique(name)
        self.add_head(name, head_of(code, shape), address, size, owner)
        return name

    def add_head(self, name: str, head: str, address: int, size: int, owner: Any) -> None:
        """The same under a name that is new and not RESERVED, with what `head_of` says."""
        self.places[name] = len(self.sizes)
        self.heads.append(head)
        self.addresses.append(address)
        self.sizes.append(size)
        self.sources.append(owner)

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

    def write(self, file: IO[bytes], metadata: dict[str, str]) -> dict[str, Any]:
        """Writes all to a new file; returns its entry of the manifest. Raises OSError."""
        names = sorted(self.places)
        rank = {head: _RANKS[head.split('"', 4)[3]] for head in set(self.heads)}
        if len(set(rank.values())) > 1:
            names.sort(key=lambda name: rank[self.heads[self.places[name]]])
        places = [self.places[name] for name in names]
        sizes = [self.sizes[place] for place in places]
        header = _header(names, [self.heads[place] for place in places], sizes, metadata)
        file.write(header)
        file.flush()
        addresses = tuple([self.addresses[place] for place in places])
        _core.write_memory(file.fileno(), addresses, tuple(sizes))
        size = os.fstat(file.fileno()).st_size
        expected = len(header) + self.size
        if len(header) - 8 > HEADER_BYTES_MAX or size != expected:
            raise OSError(f"{file.name} has {size} bytes, not {expected}")
        return {"bytes": size, "header_bytes": len(header), "header_digest": digest(header)}


def _header(
    names: list[str], heads: list[str], sizes: list[int], metadata: dict[str, str]
) -> bytes:
    about = ",".join(f"{quote(key)}:{quote(value)}" for key, value in metadata.items())
    parts = [f'"{RESERVED}":{{{about}}}']
    begin = 0
    for name, head, size in zip(names, heads, sizes, strict=True):
        end = begin + size
        parts.append(f"{quote(name)}:{head}[{begin},{end}]}}")
        begin = end
    text = ("{" + ",".join(parts) + "}").encode("utf-8")
    text += b" " * (-len(text) % ALIGNMENT)
    return len(text).to_bytes(8, "little") + text


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
    """How a torch.Tensor is stored if it has its own strided memory; else None."""
    import torch

    if why_unreadable(tensor) is not None or torch._is_zerotensor(tensor):
        return None
    if tensor.numel() and not _core.has_memory(as_bytes(tensor)):
        return None
    return STORED.get(dtype_name(tensor.dtype))


def plain_dtype(dtype: Any) -> bool:
    """Whether the elements of a numpy array are bytes in its memory, all of known meaning."""
    return bool(
        not dtype.hasobject and dtype.isbuiltin != 2 and dtype.itemsize and dtype.kind != "T"
    )
