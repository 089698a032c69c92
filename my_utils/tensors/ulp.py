"""Counts the floats between two, in units in the last place.

>>> ulps_between(1.0, 1.0 + 2**-23, "float32"), ulps_between(1.0, 1.0 + 2**-23, "float64")
(1, 536870912)
>>> ulps_between(-0.0, 0.0, "float16"), ulps_between(-(2.0**-24), 2.0**-24, "float16")
(0, 2)
"""

from __future__ import annotations

import math

# By dtype: the bits of the mantissa that are stored, and the exponent of the least normal number.
_FORMATS = {
    "float64": (52, -1022),
    "float32": (23, -126),
    "bfloat16": (7, -126),
    "float16": (10, -14),
    "float8_e4m3fn": (3, -6),
    "float8_e4m3fnuz": (3, -7),
    "float8_e5m2": (2, -14),
    "float8_e5m2fnuz": (2, -15),
}


def ulps_between(a: object, b: object, dtype: str) -> int | None:
    """How many steps of the dtype lead from `a` to `b`; None where that says nothing: for other
    dtypes, NaN and infinities."""
    if dtype not in _FORMATS or not isinstance(a, float) or not isinstance(b, float):
        return None
    if not (math.isfinite(a) and math.isfinite(b)):
        return None
    mantissa_bits, least_exponent = _FORMATS[dtype]
    return abs(_place(a, mantissa_bits, least_exponent) - _place(b, mantissa_bits, least_exponent))


def _place(value: float, mantissa_bits: int, least_exponent: int) -> int:
    """The value's place among the floats in their order, 0 for zero."""
    exponent = max(math.frexp(value)[1] - 1, least_exponent) if value else least_exponent
    steps = int(math.ldexp(abs(value), mantissa_bits - exponent))
    place = ((exponent - least_exponent) << mantissa_bits) + steps
    return -place if value < 0 else place
