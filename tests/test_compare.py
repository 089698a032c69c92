"""compare() against numpy and torch in float64, and against Python's own integers."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from my_utils.tensors import TensorDiff, compare

FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
SMALL_FLOATS = [
    torch.float8_e4m3fn,
    torch.float8_e4m3fnuz,
    torch.float8_e5m2,
    torch.float8_e5m2fnuz,
    torch.float8_e8m0fnu,
]
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
COMPLEX = [torch.complex32, torch.complex64, torch.complex128]
REALS = [torch.bool, *INTEGERS, *FLOATS, *SMALL_FLOATS]



def wide(tensor: Tensor) -> np.ndarray[Any, Any]:
    """The values as float64 or complex128; exact for all but 64-bit integers."""
    return tensor.to(torch.complex128 if tensor.is_complex() else torch.float64).numpy()


def any_bits(dtype: torch.dtype, shape: tuple[int, ...], seed: int) -> Tensor:
    """Elements of random bits: with NaNs, infinities, denormals, both zeros."""
    generator = torch.Generator().manual_seed(seed)
    size = torch.empty(0, dtype=dtype).element_size()
    raw = torch.randint(0, 256, (*shape, size), dtype=torch.uint8, generator=generator)
    if dtype == torch.bool:
        return (raw[..., 0] % 2).bool()
    return raw.view(dtype).reshape(shape)


def near(tensor: Tensor, seed: int) -> Tensor:
    """The same elements, some of them changed in their last bits, some in their sign or wholly."""
    generator = torch.Generator().manual_seed(seed)
    other = tensor.clone().contiguous()
    if tensor.dtype == torch.bool:
        return other ^ (torch.rand(other.shape, generator=generator) < 0.2)
    raw = other.view(-1).view(torch.uint8).view(other.numel(), other.element_size())
    kind = torch.randint(0, 8, (other.numel(),), generator=generator)
    raw[kind == 0, 0] ^= 1
    raw[kind == 1, 0] ^= 7
    raw[kind == 2, -1] ^= 128
    raw[kind == 3] = raw[kind == 3].flip(0)
    return other


class Oracle:
    """What numpy says in float64."""

    def __init__(self, a: Tensor, b: Tensor, atol: float, rtol: float, equal_nan: bool) -> None:
        x, y = wide(a), wide(b)
        with np.errstate(all="ignore"):
            close = x == y
            error, size = np.abs(x - y), np.abs(y)
            close |= np.isfinite(error) & (error <= atol + rtol * size)
            if equal_nan:
                close |= np.isnan(x) & np.isnan(y)
            finite = np.isfinite(x) & np.isfinite(y)
            relative = np.where(finite & (size != 0), error / size, 0)
        self.close = close
        self.error = np.where(finite, error, 0)
        self.relative = relative
        parts = [(x.real, y.real), (x.imag, y.imag)] if np.iscomplexobj(x + y) else [(x, y)]
        self.signs = np.any([(p < 0) & (q > 0) | (p > 0) & (q < 0) for p, q in parts], axis=0)
        self.infs = np.any(
            [(np.isinf(p) | np.isinf(q)) & (p != q) for p, q in parts], axis=0
        )
        self.nans = np.isnan(x) != np.isnan(y)
        self.x, self.y = x[finite], y[finite]

    def check(self, diff: TensorDiff) -> None:
        assert diff.mismatches == np.count_nonzero(~self.close)
        assert diff.equal == (diff.mismatches == 0)
        assert diff.elements == self.close.size
        assert diff.sign_differences == np.count_nonzero(self.signs)
        assert diff.inf_disagreements == np.count_nonzero(self.infs)
        assert diff.nan_disagreements == np.count_nonzero(self.nans)
        wrong = [tuple(map(int, index)) for index in np.argwhere(~self.close)]
        assert [index for index, _, _ in diff.first] == wrong[: len(diff.first)]
        assert len(diff.first) == min(10, len(wrong))
        self.check_greatest(diff.max_abs, diff.max_abs_index, self.error)
        self.check_greatest(diff.max_rel, diff.max_rel_index, self.relative)

    def check_greatest(
        self, value: float, index: tuple[int, ...] | None, errors: np.ndarray[Any, Any]
    ) -> None:
        most = errors.max(initial=0)
        assert value == pytest.approx(most, rel=4e-16, abs=0)
        if most == 0:
            assert index is None
        else:
            assert index is not None and errors[index] == pytest.approx(most, rel=4e-16, abs=0)

    def check_sums(self, diff: TensorDiff) -> None:
        x, y = self.x, self.y
        with np.errstate(all="ignore"):
            squares = [float(np.sum(np.abs(values) ** 2)) for values in (x, y, x - y)]
            product = float(np.sum(x * y.conj()).real)
            cosine = product / np.sqrt(squares[0]) / np.sqrt(squares[1])
            sqnr = 10 * np.log10(np.float64(squares[1]) / squares[2])
        assert diff.cosine == pytest.approx(cosine, abs=1e-9, nan_ok=True)
        assert diff.sqnr_db == pytest.approx(sqnr, rel=1e-9, abs=1e-9, nan_ok=True)


SHAPES = [(), (1,), (7,), (8,), (9,), (3, 5), (1024,), (1025,), (2, 1031), (0, 3)]


@pytest.mark.parametrize("dtype", [*REALS, *COMPLEX], ids=str)
@pytest.mark.parametrize("equal_nan", [False, True])
def test_every_dtype_on_random_bits(dtype: torch.dtype, equal_nan: bool) -> None:
    if dtype in (torch.int64, torch.uint64):
        pytest.skip("float64 is no oracle for these; see the tests of integers")
    for seed, shape in enumerate(SHAPES):
        a = any_bits(dtype, shape, seed)
        b = near(a, seed)
        for atol, rtol in ((0.0, 0.0), (1e-3, 0.0), (0.0, 0.3), (0.5, 1e-6)):
            diff = compare(a, b, atol=atol, rtol=rtol, equal_nan=equal_nan)
            Oracle(a, b, atol, rtol, equal_nan).check(diff)
