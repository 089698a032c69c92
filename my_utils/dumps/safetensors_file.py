"""Writes a safetensors file directly from the memory of its tensors.

The file has the bytes that the package safetensors would write. The package wants an object for
each tensor, and these take a fifth of the time of a dump of small ones.

    length of the header, u64 | header, JSON, padded to 8 bytes | the elements, without gaps
"""

from __future__ import annotations

from json.encoder import encode_basestring as quote
from typing import IO

from .. import _core
from .form import STORED

RESERVED = "__metadata__"
"""The key of the header that is no tensor."""

ALIGNMENT = 8  # bytes

_CODES = {stored.name: stored.code for stored in STORED.values()}
# Larger elements first, so that each is at a multiple of its size.
_ORDER = (
    "U64", "I64", "F64", "C64", "F32", "U32", "I32", "BF16", "F16", "U16", "I16", "F8_E5M2FNUZ",
    "F8_E4M3FNUZ", "F8_E4M3", "F8_E5M2", "I8", "U8", "BOOL",
)  # fmt: skip


def head_of(dtype: str, shape: tuple[int, ...]) -> str:
    """What the header says of tensors of one type and shape, up to where they lie.

    >>> head_of("float32", (2, 3))
    '{"dtype":"F32","shape":[2,3],"data_offsets":'
    """
    sizes = ",".join(map(str, shape))
    return f'{{"dtype":"{_CODES[dtype]}","shape":[{sizes}],"data_offsets":'


class Contents:
    """What a file will hold: each name with its place in the three lists. Not thread-safe."""

    def __init__(self) -> None:
        self.places: dict[str, int] = {}
        self.heads: list[str] = []
        self.addresses: list[int] = []
        self.sizes: list[int] = []  # bytes

    def add(self, name: str, head: str, address: int, size: int) -> None:
        """name: a new one, not RESERVED. address: of `size` bytes in row-major order, which the
        caller keeps alive."""
        self.places[name] = len(self.sizes)
        self.heads.append(head)
        self.addresses.append(address)
        self.sizes.append(size)

    def write(self, file: IO[bytes], metadata: dict[str, str]) -> bytes:
        """Writes all to a new file; returns its header with the length in front. Raises OSError."""
        names = sorted(self.places)
        rank = {head: _ORDER.index(head.split('"', 4)[3]) for head in set(self.heads)}
        if len(set(rank.values())) > 1:
            names.sort(key=lambda name: rank[self.heads[self.places[name]]])
        places = [self.places[name] for name in names]
        sizes = [self.sizes[place] for place in places]
        header = _header(names, [self.heads[place] for place in places], sizes, metadata)
        file.write(header)
        file.flush()
        addresses = tuple([self.addresses[place] for place in places])
        _core.write_memory(file.fileno(), addresses, tuple(sizes))
        return header


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
