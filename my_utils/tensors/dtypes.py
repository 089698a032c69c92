"""The element types of tensors, by the names that torch gives them: one table for dumps,
recordings and passports. Those that the engine hashes are `MU_DTYPES` in
`csrc/engine/tensor/number.h`; here is what files call them.

>>> ITEM_BYTES["bfloat16"], SAFETENSORS_CODES["BF16"], STORED["float4_e2m1fn_x2"].code
(2, 'bfloat16', 'U8')
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, NamedTuple

from .. import _core

if TYPE_CHECKING:
    import torch

SAFETENSORS_CODES = {
    "U64": "uint64", "I64": "int64", "F64": "float64", "C64": "complex64", "F32": "float32",
    "U32": "uint32", "I32": "int32", "BF16": "bfloat16", "F16": "float16", "U16": "uint16",
    "I16": "int16", "F8_E5M2FNUZ": "float8_e5m2fnuz", "F8_E4M3FNUZ": "float8_e4m3fnuz",
    "F8_E8M0": "float8_e8m0fnu", "F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2",
    "I8": "int8", "U8": "uint8", "F4": "float4_e2m1fn_x2", "BOOL": "bool",
}  # fmt: skip
"""Codes in the header of a safetensors file, in the order in which its elements are written."""

PACKED = frozenset(("F4",))
"""Codes of half a byte, whose shape counts numbers: torch has two of them in an element."""

_NEW = frozenset(("F8_E8M0", "F4"))  # not all readers of safetensors know them

BYTES = frozenset(
    (
        *(f"{kind}{bits}" for kind in ("int", "uint") for bits in range(1, 8)),
        *("bits8", "bits1x8", "bits2x4", "bits4x2"),
    )
)
"""Types whose elements are bytes, of which torch calculates nothing and copies some only."""

ITEM_BYTES = {**_core.ITEM_BYTES, **dict.fromkeys(BYTES, 1)}
"""Bytes of an element."""


class Stored(NamedTuple):
    """How dumps have the elements of a type in a safetensors file."""

    name: str  # of the type that is passed to safetensors
    code: str  # what it writes into the header
    item_bytes: int  # of one element of our type
    last: int  # size of the dimension that the view adds; 0: stored as it is


STORED = {
    **{name: Stored("uint8", "U8", 1, 0) for name, size in ITEM_BYTES.items() if size == 1},
    **{
        name: Stored(name, code, ITEM_BYTES[name], 0)
        for code, name in SAFETENSORS_CODES.items()
        if code not in _NEW
    },
    "complex32": Stored("float16", "F16", 4, 2),
    "complex128": Stored("float64", "F64", 16, 2),
}


@functools.cache
def dtype_name(dtype: torch.dtype) -> str:
    """The name without "torch."."""
    return str(dtype).removeprefix("torch.")
