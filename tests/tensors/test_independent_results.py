"""Results of the tensor functions against other programs for the same definitions, which share no
code with them: the hash in numpy after docs/correctness/tensor-hash.md, statistics and comparisons
in exact fractions, the test suite of RFC 1321.
"""

from __future__ import annotations

import decimal
import math
import random
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch

from my_utils.tensors import compare, md5, stats, tensor_hash

from ..support.dtypes import BYTE_FLOATS, COMPLEX, DTYPES, FLOAT4, FLOATS, INTEGERS

REALS = [torch.bool, *INTEGERS, *FLOATS, *BYTE_FLOATS]
ONE = np.uint64(1)
U64 = np.uint64


def bits(dtype: torch.dtype, count: int, seed: int) -> torch.Tensor:
    """Any bits, which are of every kind of number."""
    raw = np.random.default_rng(seed).integers(0, 256, count * 16, dtype=np.uint8)
    if dtype == torch.bool:
        return torch.from_numpy(raw[:count] % 2 != 0)
    width = 1 if dtype == FLOAT4 else torch.empty(0, dtype=dtype).element_size()
    return torch.from_numpy(raw[: count * width].copy()).view(dtype)


# --- the hash --------------------------------------------------------------------------------


STEP = U64(0x9E3779B97F4A7C15)
START = U64(0x243F6A8885A308D3)


def smix(z: Any) -> Any:
    z = (z ^ z >> U64(30)) * U64(0xBF58476D1CE4E5B9)
    z = (z ^ z >> U64(27)) * U64(0x94D049BB133111EB)
    return z ^ z >> U64(31)


def outputs_of_splitmix(count: int) -> Any:
    return smix(START + STEP * np.arange(1, count + 1, dtype=U64))


def factors_of(block: int) -> Any:
    """For each accumulator a row of the lanes' factors."""
    numbers = np.arange(16 * block + 1, 16 * block + 17, dtype=U64) + U64(512)
    return (smix(smix(START + STEP * numbers) ^ U64(0xD1342543DE82EF95)) | ONE).reshape(4, 4)


_OUTPUTS = outputs_of_splitmix(520)
KEYS = np.stack([_OUTPUTS[:512] & U64(0xFFFFFFFF), _OUTPUTS[:512] >> U64(32)], 1).reshape(256, 4)
F = _OUTPUTS[512:] | ONE


def mix(a: Any, b: Any, c: Any, d: Any, i: Any) -> tuple[Any, Any]:
    def shifted(value: Any, by: int, factor: int) -> Any:
        return (value ^ value >> U64(by)) * F[factor]

    def rotated(value: Any, by: int) -> Any:
        return value << U64(by) | value >> U64(64 - by)

    x, y = shifted(a + i * F[0], 32, 2), shifted(c + i * F[1], 32, 3)
    x, y = x ^ x >> U64(29), y ^ y >> U64(29)
    x, y = x + b, y + d
    x = x + rotated(y, 23)
    y = y ^ rotated(x, 31)
    x, y = shifted(x, 32, 4), shifted(y, 32, 5)
    x = x + (y ^ y >> U64(29))
    y = y + (x ^ x >> U64(29))
    x, y = shifted(x, 32, 6), shifted(y, 32, 7)
    return x ^ x >> U64(32), y ^ y >> U64(32)


def content(data: bytes) -> tuple[Any, Any]:
    quads = np.frombuffer(data + bytes(-len(data) % 16), "<u4").reshape(-1, 4).astype(U64)
    lanes = np.zeros(4, U64)
    for block in range(0, len(quads), 256):
        part = quads[block : block + 256]
        x = (part + KEYS[: len(part)]) & U64(0xFFFFFFFF)
        pairs = ((0, 1), (2, 3), (0, 3), (2, 1))
        sums = np.stack([np.sum(x[:, i] * x[:, j], dtype=U64, keepdims=True) for i, j in pairs])
        lanes += np.sum(factors_of(block // 256) * sums, axis=0, dtype=U64)
    a, b, c, d = lanes.reshape(4, 1)
    return mix(a, b, c, d, np.array([len(data) + 1], U64))


def digests(tensor: torch.Tensor) -> tuple[str, str]:
    """The content digest and the combined one."""
    flat = tensor.contiguous()
    raw = flat.clone().as_strided((flat.numel(),), (1,)).view(torch.uint8).numpy().tobytes()
    header = str(tensor.dtype).removeprefix("torch.").encode().ljust(16, b"\0")
    header += b"".join(value.to_bytes(8, "little") for value in (tensor.ndim, *tensor.shape))
    low, high = content(raw)
    of_header = content(header)
    both = mix(low, of_header[0], high, of_header[1], ~np.ones(1, U64))
    return f"{high[0]:016x}{low[0]:016x}", f"{both[1][0]:016x}{both[0][0]:016x}"


VIEWS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "as it lies": lambda x: x,
    "flat": lambda x: x.flatten(),
    "transposed": lambda x: x.transpose(0, 2),
    "permuted": lambda x: x.permute(1, 2, 0),
    "every second": lambda x: x[::2],
    "columns": lambda x: x[:, :, 3:40],
    "one row": lambda x: x[2, 1],
    "expanded": lambda x: x[:1].expand(5, *x.shape[1:]),
    "overlapping": lambda x: x.flatten().as_strided((50, 7), (3, 2), 5),
    "an axis of one": lambda x: x.unsqueeze(1),
    "nothing": lambda x: x[:0],
    "one": lambda x: x[1, 1, 1],
}


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_hash_is_that_of_the_definition(dtype: torch.dtype, view: str) -> None:
    tensor = VIEWS[view](bits(dtype, 4 * 9 * 121, 1).reshape(4, 9, 121))
    found = tensor_hash(tensor)
    assert (found.content, found.combined) == digests(tensor)


# --- statistics ------------------------------------------------------------------------------

SHAPES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "nothing": lambda x: x[:0], "one": lambda x: x[:1], "two": lambda x: x[:2],
    "odd": lambda x: x[:67], "whole": lambda x: x, "strided": lambda x: x[3::5],
    "transposed": lambda x: x[:90].reshape(9, 10).T,
}  # fmt: skip


def numbers(tensor: torch.Tensor) -> list[Any]:
    """The elements, as Python numbers without loss."""
    if tensor.is_complex():
        wide = tensor.to(torch.complex128).flatten().tolist()
        return [part for value in wide for part in (value.real, value.imag)]
    if tensor.is_floating_point():
        return list(tensor.double().flatten().tolist())
    return [int(value) for value in tensor.flatten().tolist()]


def filled(dtype: torch.dtype, pattern: int) -> torch.Tensor:
    """Any bits, zeros, ones, few values, and others with a NaN or infinities in them."""
    tensor = bits(dtype, 150, pattern)
    if pattern == 1:
        tensor = torch.zeros(150).to(dtype)
    elif pattern == 2:
        tensor = torch.ones(150).to(dtype)
    elif pattern == 3:
        tensor = tensor[:4].repeat(38)[:150].clone()
    elif pattern in (4, 5) and dtype not in (torch.bool, *INTEGERS):
        special = [math.nan] if pattern == 4 else [math.inf, -math.inf]
        tensor[: len(special)] = torch.tensor(special).to(dtype)
    return tensor


def root(value: Fraction) -> Fraction:
    with decimal.localcontext(decimal.Context(60, Emin=-9999, Emax=9999)):
        return Fraction((decimal.Decimal(value.numerator) / value.denominator).sqrt())


def near(found: float, exact: Fraction, slack: Fraction) -> bool:
    if math.isinf(found):
        return abs(exact) > Fraction(1.797e308)
    return abs(Fraction(found) - exact) <= slack + Fraction(5e-324)


@pytest.mark.parametrize("pattern", range(6))
@pytest.mark.parametrize("dtype", [*REALS, *COMPLEX], ids=str)
@pytest.mark.parametrize("shape", SHAPES)
def test_statistics_in_fractions(dtype: torch.dtype, shape: str, pattern: int) -> None:
    tensor = SHAPES[shape](filled(dtype, pattern))
    found, given = stats(tensor), numbers(tensor)
    finite = [Fraction(value) for value in given if math.isfinite(value)]
    assert (found.count, found.finite) == (len(given), len(finite))
    assert found.zeros == given.count(0)
    assert found.nans == sum(value != value for value in given)
    assert (found.pos_infs, found.neg_infs) == (given.count(math.inf), given.count(-math.inf))
    if not finite:
        assert math.isnan(found.mean) and found.l1 == found.l2 == 0
        return
    assert (Fraction(found.min), Fraction(found.max)) == (min(finite), max(finite))
    assert Fraction(found.abs_max) == max(map(abs, finite))
    size = sum(map(abs, finite), Fraction())
    mean = sum(finite, Fraction()) / len(finite)
    assert near(found.mean, mean, size / len(finite) / 10**12)
    assert near(found.l1, size, size / 10**12)
    norm = root(sum((value**2 for value in finite), Fraction()))
    assert near(found.l2, norm, norm / 10**12)
    if len(finite) > 1:
        squares = sum(((value - mean) ** 2 for value in finite), Fraction())
        deviation = root(squares / (len(finite) - 1))
        assert near(found.std, deviation, deviation / 10**10)


# --- comparison ------------------------------------------------------------------------------

TOLERANCES = [(0.0, 0.0), (0.25, 0.0), (1e-3, 0.125)]


def close(a: Any, b: Any, atol: float, rtol: float) -> tuple[bool, bool]:
    """Whether two elements agree, by thresholds an ulp or two below and above."""
    if not (math.isfinite(a) and math.isfinite(b)):
        return (a == b,) * 2
    error = abs(Fraction(a) - Fraction(b))
    threshold = Fraction(atol) + Fraction(rtol) * abs(Fraction(b))
    ulp = Fraction(1, 2**51)
    return error <= threshold * (1 - ulp), error <= threshold * (1 + ulp)


@pytest.mark.parametrize("left", REALS, ids=str)
@pytest.mark.parametrize("right", REALS, ids=str)
def test_comparisons_in_fractions(left: torch.dtype, right: torch.dtype) -> None:
    choose = random.Random(f"{left}{right}")
    for count in (1, 17, 60):
        for atol, rtol in TOLERANCES:
            seed = choose.randrange(2**31)
            a, b = bits(left, count, seed), bits(right, count, seed + 1)
            if choose.random() < 0.5:  # many that agree
                b = torch.where(bits(torch.bool, count, seed), a.float(), b.float()).to(right)
            found = compare(a, b, atol=atol, rtol=rtol, max_mismatches=count)
            pairs = list(zip(numbers(a), numbers(b), strict=True))
            flags = [close(x, y, atol, rtol) for x, y in pairs]
            least, most = (sum(not flag[i] for flag in flags) for i in (1, 0))
            assert least <= found.mismatches <= most
            listed = {index[0] for index, _, _ in found.first}
            assert {i for i, flag in enumerate(flags) if not flag[1]} <= listed
            assert not listed & {i for i, flag in enumerate(flags) if flag[0]}
            both = [(Fraction(x), Fraction(y)) for x, y in pairs
                    if math.isfinite(x) and math.isfinite(y)]  # fmt: skip
            greatest = max((abs(x - y) for x, y in both), default=Fraction())
            assert near(found.max_abs, greatest, greatest / 2**51)
            assert found.sign_differences == sum(x < 0 < y or y < 0 < x for x, y in pairs)
            assert found.nan_disagreements == sum((x != x) != (y != y) for x, y in pairs)


# --- MD5 -------------------------------------------------------------------------------------

# RFC 1321, A.5.
SUITE = {
    "": "d41d8cd98f00b204e9800998ecf8427e",
    "a": "0cc175b9c0f1b6a831c399e269772661",
    "abc": "900150983cd24fb0d6963f7d28e17f72",
    "message digest": "f96b697d7cb7938d525a2f31aaf161d0",
    "abcdefghijklmnopqrstuvwxyz": "c3fcd3d76192e4007dfb496cca67e13b",
    "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789":
        "d174ab98d277d9f5a5611c2c9f419d9f",
    "1234567890" * 8: "57edf4a22be3c955ac49da2e2107b67a",
}  # fmt: skip


def test_the_suite_of_the_rfc() -> None:
    texts = [np.frombuffer(text.encode(), np.uint8) for text in SUITE]
    assert [md5(text) for text in texts] == md5(texts) == [*SUITE.values()]
