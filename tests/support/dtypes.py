"""torch's dtypes with elements in memory, by kind."""

from __future__ import annotations

import torch

INTEGERS = [
    torch.uint8,
    torch.uint16,
    torch.uint32,
    torch.uint64,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
]
FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
BYTE_FLOATS = [
    torch.float8_e4m3fn,
    torch.float8_e4m3fnuz,
    torch.float8_e5m2,
    torch.float8_e5m2fnuz,
    torch.float8_e8m0fnu,
]
COMPLEX = [torch.complex32, torch.complex64, torch.complex128]
FLOAT4 = torch.float4_e2m1fn_x2  # two values an element
DTYPES = [torch.bool, *INTEGERS, *FLOATS, *COMPLEX, *BYTE_FLOATS, FLOAT4]
