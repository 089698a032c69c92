"""The element types of tensors, by the names that torch gives them: one table for dumps,
recordings and passports. Those that the engine hashes and decodes are in `csrc/engine/tensor`.

>>> ITEM_BYTES["bfloat16"], SAFETENSORS_CODES["BF16"]
(2, 'bfloat16')
"""

from __future__ import annotations

SAFETENSORS_CODES = {
    "BOOL": "bool", "U8": "uint8", "I8": "int8", "U16": "uint16", "I16": "int16",
    "F16": "float16", "BF16": "bfloat16", "U32": "uint32", "I32": "int32", "F32": "float32",
    "U64": "uint64", "I64": "int64", "F64": "float64", "C64": "complex64",
    "F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2", "F8_E8M0": "float8_e8m0fnu",
    "F8_E4M3FNUZ": "float8_e4m3fnuz", "F8_E5M2FNUZ": "float8_e5m2fnuz",
}  # fmt: skip
"""Codes in the header of a safetensors file."""

BYTES = frozenset(
    (
        *(f"{kind}{bits}" for kind in ("int", "uint") for bits in range(1, 8)),
        *("bits8", "bits1x8", "bits2x4", "bits4x2"),
    )
)
"""Types whose elements are bytes, of which torch calculates nothing and copies some only."""

ITEM_BYTES = {
    **dict.fromkeys(BYTES, 1),
    **dict.fromkeys(("bool", "int8", "uint8"), 1),
    **dict.fromkeys(("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz"), 1),
    **dict.fromkeys(("float8_e8m0fnu", "float4_e2m1fn_x2"), 1),
    **dict.fromkeys(("float16", "bfloat16", "int16", "uint16"), 2),
    **dict.fromkeys(("float32", "int32", "uint32", "complex32"), 4),
    **dict.fromkeys(("float64", "int64", "uint64", "complex64"), 8),
    "complex128": 16,
}
"""Bytes of an element."""
