"""compare() against numpy and torch in float64, and against Python's own integers."""

from __future__ import annotations

import doctest
import inspect
import itertools
import math
import os
import pickle
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor
from torch.testing._comparison import default_tolerances

from my_utils import _core
from my_utils.tensors import TensorDiff, compare

from ..conftest import RunPython
from ..support.dtypes import BYTE_FLOATS, COMPLEX, FLOATS, INTEGERS

INF, NAN = math.inf, math.nan
REALS = [torch.bool, *INTEGERS, *FLOATS, *BYTE_FLOATS]


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
    other = tensor.clone(memory_format=torch.contiguous_format)
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
        has_parts = np.iscomplexobj(x) or np.iscomplexobj(y)
        parts = [(x.real, y.real), (x.imag, y.imag)] if has_parts else [(x, y)]
        self.signs = np.any([(p < 0) & (q > 0) | (p > 0) & (q < 0) for p, q in parts], axis=0)
        self.infs = np.any([(np.isinf(p) | np.isinf(q)) & (p != q) for p, q in parts], axis=0)
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


TOLERANCES = [(0.0, 0.0), (1e-3, 0.0), (0.0, 0.3), (0.5, 1e-6)]
NARROW = [dtype for dtype in REALS if dtype not in (torch.int64, torch.uint64)]


@pytest.mark.parametrize("dtype", [*NARROW, *COMPLEX], ids=str)
@pytest.mark.parametrize("equal_nan", [False, True])
def test_every_dtype_on_random_bits(dtype: torch.dtype, equal_nan: bool) -> None:
    for seed, shape in enumerate(SHAPES):
        a = any_bits(dtype, shape, seed)
        b = near(a, seed)
        for atol, rtol in TOLERANCES:
            diff = compare(a, b, atol=atol, rtol=rtol, equal_nan=equal_nan)
            Oracle(a, b, atol, rtol, equal_nan).check(diff)


@pytest.mark.parametrize("left", [*NARROW, *COMPLEX], ids=str)
def test_every_pair_of_dtypes(left: torch.dtype) -> None:
    for seed, right in enumerate([*NARROW, *COMPLEX]):
        a = any_bits(left, (100,), seed)
        b = any_bits(right, (100,), seed + 1)
        if right not in BYTE_FLOATS:
            b[:50] = a[:50].to(torch.complex128).real.to(right)
        Oracle(a, b, 0.5, 1e-2, False).check(compare(a, b, atol=0.5, rtol=1e-2))


def test_values_are_exact_python_numbers() -> None:
    pairs = [
        (torch.tensor(2**63 - 1), torch.tensor(2**64 - 1, dtype=torch.uint64)),
        (torch.tensor(True), torch.tensor(-128, dtype=torch.int8)),
        (torch.tensor(0.1), torch.tensor(0.1, dtype=torch.float64)),
        (torch.tensor(1 + 2j), torch.tensor(0.5, dtype=torch.bfloat16)),
    ]
    for a, b in pairs:
        ((index, left, right),) = compare(a, b, atol=0, rtol=0).first
        assert (index, left, right) == ((), a.item(), b.item())
        assert (type(left), type(right)) == (type(a.item()), type(b.item()))


# --- integers, exactly


BOUNDS = {
    torch.bool: (0, 1),
    torch.int8: (-128, 127),
    torch.int64: (-(2**63), 2**63 - 1),
    torch.uint64: (0, 2**64 - 1),
}


def integers(dtype: torch.dtype) -> st.SearchStrategy[int]:
    low, high = BOUNDS[dtype]
    corners = [low, high, 0, 1, 2**52, 2**52 + 1, 2**53, 2**53 + 1, -(2**53) - 1, 2**63, 2**62 + 1]
    inside = [value for value in corners if low <= value <= high]
    return st.integers(low, high) | st.sampled_from(inside)


@st.composite
def integer_pairs(draw: st.DrawFn) -> tuple[Tensor, Tensor, list[int], list[int]]:
    left, right = draw(st.sampled_from(list(itertools.product(BOUNDS, BOUNDS))))
    count = draw(st.integers(0, 20))
    a = draw(st.lists(integers(left), min_size=count, max_size=count))
    low, high = BOUNDS[right]
    close = [min(max(value + draw(st.integers(-3, 3)), low), high) for value in a]
    b = draw(st.just(close) | st.lists(integers(right), min_size=count, max_size=count))
    return torch.tensor(a, dtype=left), torch.tensor(b, dtype=right), a, b


def test_of_equal_errors_the_first_is_named_whatever_computes_it() -> None:
    """Integers beyond 2**52 do not go through the vectors that the others do."""
    a = torch.tensor([0, 0, 0, 2**52], dtype=torch.uint64)
    b = torch.tensor([0, 0, 1, 2**52 + 1], dtype=torch.int64)
    assert compare(a, b).max_abs_index == (2,)
    c = torch.tensor([0, 2**62 + 2**9, 2**62 + 2**9 + 1])  # equal when rounded to a double
    assert compare(torch.zeros(3, dtype=torch.bool), c).max_abs_index == (2,)
    x = torch.tensor([0.0, 1.0, -math.inf, 1.0], dtype=torch.float64)
    y = torch.tensor([0.0, 2.0, -math.inf, 2.0], dtype=torch.float64)
    diff = compare(x, y)
    assert (diff.max_abs_index, diff.max_rel_index) == ((1,), (1,))


@settings(deadline=None, max_examples=400)
@given(integer_pairs(), st.sampled_from([0, 1, 2, 2.5, 2.0**53, 2.0**64]))
def test_integers_lose_nothing(
    pair: tuple[Tensor, Tensor, list[int], list[int]], atol: float
) -> None:
    a, b, left, right = pair
    diff = compare(a, b, atol=atol, rtol=0)
    errors = [abs(x - y) for x, y in zip(left, right, strict=True)]
    most = max(errors, default=0)
    assert diff.max_abs == most and isinstance(diff.max_abs, int)
    assert diff.max_abs_index == ((errors.index(most),) if most else None)
    wrong = [(i, left[i], right[i]) for i, error in enumerate(errors) if error > Fraction(atol)]
    assert diff.mismatches == len(wrong)
    assert [(i, int(x), int(y)) for (i,), x, y in diff.first] == wrong[:10]
    relative = [e / abs(y) if y else 0 for e, y in zip(errors, right, strict=True)]
    assert diff.max_rel == pytest.approx(max(relative, default=0), rel=1e-15)
    assert diff.sign_differences == sum(x * y < 0 for x, y in zip(left, right, strict=True))


def test_integers_in_long_tensors() -> None:
    """Blocks that fit a double and blocks that do not, side by side."""
    a = torch.arange(2**19)
    a[2**18 + 77] = 2**62
    b = a.clone()
    b[2**18 + 77] += 1
    b[[5, 2**18, -1]] += 3
    diff = compare(a, b)
    assert [(i, y - x) for (i,), x, y in diff.first] == [
        (5, 3),
        (2**18, 3),
        (2**18 + 77, 1),
        (2**19 - 1, 3),
    ]
    assert (diff.max_abs, diff.max_abs_index) == (3, (5,))


@settings(deadline=None, max_examples=300)
@given(
    st.integers(-(2**63), 2**63 - 1),
    st.integers(-2000, 2000),
    st.sampled_from([0.0, 1.0, 3.0, 100.0, 2.0**11]),
    st.booleans(),
)
def test_an_integer_and_a_float(value: int, offset: int, atol: float, float_first: bool) -> None:
    """Right where the two are near each other: no integer is rounded before the subtraction."""
    other = float(min(max(value + offset, -(2**63)), 2**63 - 1))
    a, b = torch.tensor(value), torch.tensor(other, dtype=torch.float64)
    diff = compare(b, a, atol=atol, rtol=0) if float_first else compare(a, b, atol=atol, rtol=0)
    error = abs(value - int(other))
    assert diff.max_abs == float(error)
    assert diff.equal == (error <= atol)


# --- against torch and numpy


def of_bits(dtype: torch.dtype) -> st.SearchStrategy[list[int]]:
    top = 2 ** (8 * torch.empty(0, dtype=dtype).element_size()) - 1
    return st.lists(st.integers(0, top), min_size=1, max_size=40)


@settings(deadline=None, max_examples=300)
@given(st.data())
def test_torch_isclose_but_for_an_ulp_of_the_threshold(data: st.DataObject) -> None:
    dtype = data.draw(st.sampled_from(FLOATS))
    size = torch.empty(0, dtype=dtype).element_size()
    bits = data.draw(of_bits(dtype))
    raw = b"".join(value.to_bytes(size, "little") for value in bits)
    a = torch.frombuffer(bytearray(raw), dtype=dtype)
    b = near(a, data.draw(st.integers(0, 2**30)))
    atol = data.draw(st.sampled_from([0.0, 1e-8, 1e-5, 0.25]))
    rtol = data.draw(st.sampled_from([0.0, 1e-7, 1e-3, 0.125]))
    equal_nan = data.draw(st.booleans())
    diff = compare(a, b, atol=atol, rtol=rtol, equal_nan=equal_nan, max_mismatches=100)
    native = torch.isclose(a, b, atol=atol, rtol=rtol, equal_nan=equal_nan)
    ours = torch.ones_like(native)
    for index, _, _ in diff.first:
        ours[index] = False
    oracle = Oracle(a, b, atol, rtol, equal_nan)
    assert (ours.numpy() == oracle.close).all()
    x, y = wide(a), wide(b)
    with np.errstate(all="ignore"):
        error, threshold = np.abs(x - y), atol + rtol * np.abs(y)
        info = torch.finfo(dtype)
        # The native one rounds |a - b|, rtol * |b| and their sum to the dtype, and may overflow.
        rounding = 2 * info.eps * threshold + 2 * info.smallest_normal * info.eps
        overflows = np.maximum(error, threshold) > info.max
    disputed = ours.numpy() != native.numpy()
    assert (disputed <= ((np.abs(error - threshold) <= rounding) | overflows)).all()


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_torch_isclose_on_a_million(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(1)
    a = torch.randn(2**20, generator=generator).to(dtype)
    b = (a.double() * (1 + 0.02 * torch.randn(2**20, generator=generator))).to(dtype)
    atol, rtol = 1e-3, 1e-2
    diff = compare(a, b, atol=atol, rtol=rtol)
    Oracle(a, b, atol, rtol, False).check(diff)
    native = int((~torch.isclose(a, b, atol=atol, rtol=rtol)).sum())
    assert native == pytest.approx(diff.mismatches, rel=0.01)


@settings(deadline=None, max_examples=300)
@given(st.data())
def test_complex_numbers_as_torch_has_them(data: st.DataObject) -> None:
    numbers = st.sampled_from([0.0, -0.0, 1.0, 1.25, -1.0, 3e-5, 1e200, INF, -INF, NAN])
    values = st.lists(st.builds(complex, numbers, numbers), min_size=6, max_size=6)
    a, b = (torch.tensor(data.draw(values), dtype=torch.complex128) for _ in range(2))
    atol, rtol = data.draw(st.sampled_from([(0.0, 0.0), (1e-4, 0.0), (0.0, 0.5), (0.6, 1e-3)]))
    equal_nan = data.draw(st.booleans())
    diff = compare(a, b, atol=atol, rtol=rtol, equal_nan=equal_nan)
    close = torch.isclose(a, b, atol=atol, rtol=rtol, equal_nan=equal_nan)
    assert [index for (index,), _, _ in diff.first] == (~close).nonzero().flatten().tolist()
    assert diff.nan_disagreements == int((a.isnan() != b.isnan()).sum())


@settings(deadline=None, max_examples=300)
@given(st.data())
def test_cosine_and_sqnr(data: st.DataObject) -> None:
    dtype = data.draw(st.sampled_from([*FLOATS, *COMPLEX, torch.int16, torch.float8_e5m2]))
    count = data.draw(st.integers(0, 3000))
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 2**30)))
    scale = 10.0 ** data.draw(st.integers(-3, 3))
    noise = 10.0 ** data.draw(st.integers(-8, 2))
    wide_type = torch.complex128 if dtype in COMPLEX else torch.float64
    x = torch.randn(count, dtype=wide_type, generator=generator) * scale
    y = x + torch.randn(count, dtype=wide_type, generator=generator) * scale * noise
    a, b = x.to(dtype), y.to(dtype)
    Oracle(a, b, 0, 0, False).check_sums(compare(a, b))


def test_sums_of_long_tensors() -> None:
    generator = torch.Generator().manual_seed(3)
    a = torch.randn(2**20 + 3, generator=generator) + 100
    b = a + 1e-4 * torch.randn(a.shape, generator=generator)
    a[7], b[2**19] = NAN, INF
    Oracle(a, b, 0, 0, False).check_sums(compare(a, b))


def test_default_tolerances() -> None:
    steps = {
        torch.float8_e4m3fn: (2**-3, 2**-9),
        torch.float8_e4m3fnuz: (2**-3, 2**-10),
        torch.float8_e5m2: (2**-2, 2**-16),
        torch.float8_e5m2fnuz: (2**-2, 2**-17),
    }
    for dtypes in itertools.product([*REALS, *COMPLEX], repeat=2):
        a, b = (torch.zeros(3, dtype=dtype) for dtype in dtypes)
        rtol, atol = default_tolerances(*dtypes)
        for dtype in dtypes:
            rtol = max(rtol, steps.get(dtype, (0, 0))[0])
            atol = max(atol, steps.get(dtype, (0, 0))[1])
        diff = compare(a, b)
        assert (diff.rtol, diff.atol) == (rtol, atol), dtypes
        assert compare(a, b, rtol=0.5).atol == atol and compare(a, b, atol=0.5).rtol == rtol


# --- what other comparers get wrong


def test_opposite_infinities_are_named() -> None:
    diff = compare(torch.tensor([1.0, INF, -INF, INF]), torch.tensor([1.0, -INF, -INF, 2.0]))
    assert diff.first == (((1,), INF, -INF), ((3,), INF, 2.0))
    assert (diff.mismatches, diff.inf_disagreements, diff.sign_differences) == (2, 2, 1)
    assert (diff.max_abs, diff.max_abs_index) == (0, None)
    assert compare(torch.tensor(INF), torch.tensor(INF)).equal
    assert not compare(torch.tensor(1.0), torch.tensor(INF), rtol=1.0, atol=1.0).equal


def test_bools() -> None:
    diff = compare(torch.tensor([True, False]), torch.tensor([True, True]))
    assert diff.first == (((1,), False, True),) and diff.max_abs == 1
    odd = np.array([1, 2, 0], dtype=np.uint8)
    same_truth = compare(odd.view(bool), np.array([True, True, False]))
    assert same_truth.equal and not same_truth.equal_bits


def test_small_floats() -> None:
    for dtype in (torch.float8_e4m3fn, torch.float8_e5m2):
        a = torch.tensor([1.0, 2.0, -3.5]).to(dtype)
        b = torch.tensor([1.0, 4.0, 3.5]).to(dtype)
        diff = compare(a, b)
        assert [index for index, _, _ in diff.first] == [(1,), (2,)]
        assert (diff.max_abs, diff.max_abs_index) == (7, (2,))
        assert "at (2,): -3.5, 3.5" in str(diff)
        assert compare(a, a.float()).max_abs == 0


def test_pairs_of_four_bits() -> None:
    a = torch.tensor([0x21, 0x7F, 0x00], dtype=torch.uint8).view(torch.float4_e2m1fn_x2)
    b = torch.tensor([0x21, 0x7E, 0x08], dtype=torch.uint8).view(torch.float4_e2m1fn_x2)
    diff = compare(a, b, atol=0, rtol=0)
    assert diff.first == (((1,), (-6.0, 6.0), (-4.0, 6.0)),)
    assert (diff.elements, diff.max_abs, diff.max_abs_index) == (3, 2, (1,))
    assert diff.max_rel == 0.5 and not diff.equal_bits
    assert compare(a, a).equal_bits
    with pytest.raises(ValueError, match=r"two numbers an element.*uint8 with float4_e2m1fn_x2"):
        compare(torch.zeros(3, dtype=torch.uint8), a)


@pytest.mark.parametrize("shapes", [((3,), (4,)), ((3,), (3, 1)), ((), (1,)), ((0,), (1,))])
def test_other_shapes_are_refused(shapes: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    a, b = (torch.zeros(shape) for shape in shapes)
    with pytest.raises(ValueError) as error:
        compare(a, b)
    assert str(error.value) == f"a and b must have the same shape, not {shapes[0]} and {shapes[1]}"


def test_lists_are_no_tensors() -> None:
    one = torch.zeros(2)
    with pytest.raises(TypeError, match=r"^a .*list"):
        compare([one], [one])
    with pytest.raises(TypeError, match=r"^b .*list"):
        compare(one, [one, one])


def test_zeros_and_nans() -> None:
    zeros = compare(torch.tensor([0.0, -0.0]), torch.tensor([-0.0, 0.0]), atol=0, rtol=0)
    assert zeros.equal and not zeros.equal_bits and zeros.sign_differences == 0
    assert math.isnan(zeros.cosine) and math.isnan(zeros.sqnr_db)
    nans = torch.tensor([NAN, 1.0])
    ((index, left, right),) = compare(nans, nans).first
    assert index == (0,) and math.isnan(left) and math.isnan(right)
    assert compare(nans, nans).mismatches == 1 and compare(nans, nans).equal_bits
    same = compare(nans, nans, equal_nan=True)
    assert same.equal and same.cosine == 1 and same.sqnr_db == INF
    payload = torch.tensor([0x7FC00001, 0x3F800000], dtype=torch.int32).view(torch.float32)
    other = compare(nans, payload, equal_nan=True)
    assert other.equal and not other.equal_bits and other.nan_disagreements == 0


def test_one_nan_does_not_hide_the_rest() -> None:
    a, b = torch.tensor([NAN, 1.0, 5.0, INF]), torch.tensor([2.0, 1.5, 5.0, 3.0])
    diff = compare(a, b)
    assert (diff.max_abs, diff.max_abs_index, diff.max_rel) == (0.5, (1,), 0.5 / 1.5)
    assert (diff.nan_disagreements, diff.inf_disagreements, diff.mismatches) == (1, 1, 3)
    assert diff.sqnr_db == pytest.approx(10 * math.log10((1.5**2 + 25) / 0.25))


def test_division_by_zero_is_left_out() -> None:
    diff = compare(torch.tensor([1.0, 1.0]), torch.tensor([0.0, 2.0]))
    assert (diff.max_rel, diff.max_rel_index) == (0.5, (1,))
    assert compare(torch.ones(3), torch.zeros(3)).max_rel == 0
    assert compare(torch.ones(3), torch.zeros(3)).sqnr_db == -INF


def test_greatest_errors_far_apart_in_size() -> None:
    """A quotient beyond what products of it can hold."""
    a = torch.tensor([1e-300, 1e300, 5e-324], dtype=torch.float64)
    b = torch.tensor([2e-300, 5e-324, 1e-323], dtype=torch.float64)
    long_a, long_b = a.repeat(1000), b.repeat(1000)
    for left, right in ((a, b), (long_a, long_b)):
        diff = compare(left, right)
        assert (diff.max_rel, diff.max_rel_index) == (INF, (1,))
    diff = compare(long_a[0:3000:3], long_b[0:3000:3])
    assert (diff.max_rel, diff.max_rel_index) == (0.5, (0,))


# --- strides, shapes, kinds of tensors


@settings(deadline=None, max_examples=100)
@given(st.data())
def test_strides_do_not_matter(data: st.DataObject) -> None:
    shape = data.draw(st.lists(st.integers(1, 9), min_size=1, max_size=4))
    dtype = data.draw(st.sampled_from([torch.float32, torch.bfloat16, torch.int64, torch.bool]))
    base = any_bits(dtype, tuple(2 * size for size in shape), 5)
    steps = [data.draw(st.integers(1, 2)) for _ in shape]
    order = data.draw(st.permutations(range(len(shape))))
    view = base[tuple(slice(0, None, step) for step in steps)].permute(order)
    other = near(view, 6)
    expected = compare(view.contiguous(), other, atol=1.0)
    assert repr(compare(view, other, atol=1.0)) == repr(expected)
    spread = other.flip(0).flip(0)[..., None].expand(*other.shape, 3)
    left = view[..., None].expand(*view.shape, 3)
    assert repr(compare(left, spread)) == repr(compare(left.contiguous(), spread.contiguous()))


def test_broadcast_views_and_negative_strides() -> None:
    one = torch.tensor([[1.0], [2.0]])
    diff = compare(one.expand(2, 1000), torch.ones(2, 1000))
    assert (diff.mismatches, diff.first[0]) == (1000, ((1, 0), 2.0, 1.0))
    rows = np.arange(12.0).reshape(3, 4)
    assert compare(rows[::-1, ::-1], torch.arange(11.0, -1, -1).reshape(3, 4)).equal


def test_without_dimensions_and_without_elements() -> None:
    diff = compare(torch.tensor(2.0), torch.tensor(3.0))
    assert diff.first == (((), 2.0, 3.0),) and diff.max_abs_index == () and diff.shape == ()
    empty = compare(torch.zeros(3, 0), torch.zeros(3, 0, dtype=torch.int32))
    assert (empty.elements, empty.mismatches, empty.first, empty.max_abs) == (0, 0, (), 0)
    assert empty.equal and not empty.equal_bits and empty.shape == (3, 0)
    assert math.isnan(empty.cosine) and math.isnan(empty.sqnr_db)
    assert compare(torch.zeros(0), torch.zeros(0)).equal_bits


def test_parameters_views_and_buffers() -> None:
    parameter = torch.nn.Parameter(torch.tensor([1.0 + 2j, 3j]))
    assert compare(parameter.conj(), parameter.detach().conj().resolve_conj()).equal_bits
    assert not compare(parameter.conj(), parameter).equal
    assert compare(b"\x01\x02", np.array([1, 2], dtype=np.uint8)).equal_bits
    assert compare(parameter.conj().imag, torch.tensor([-2.0, -3.0])).equal_bits


# --- threads and processes


def test_threads_change_nothing() -> None:
    generator = torch.Generator().manual_seed(9)
    a = torch.randn(2**20 + 77, generator=generator)
    b = a + 1e-5 * torch.randn(a.shape, generator=generator)
    a[2**19], b[2**18] = NAN, INF
    before = torch.get_num_threads()
    found = set()
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            found.add(repr(compare(a, b, max_mismatches=1000)))
    finally:
        torch.set_num_threads(before)
    assert len(found) == 1


FORKED = """
import os, torch
from my_utils.tensors import compare
a = torch.randn(2**20)
b = a * 1.5
expected = repr(compare(a, b))
child = os.fork()
if child == 0:
    os._exit(0 if repr(compare(a, b)) == expected else 1)
print(os.waitpid(child, 0)[1])
"""


@pytest.mark.slow
def test_in_a_forked_child(run_python: RunPython) -> None:
    result = run_python("-c", FORKED)
    assert (result.stdout, result.returncode) == ("0\n", 0), result.stderr


MEMORY = """
import re, torch
from my_utils.tensors import compare

def kib(field):
    return int(re.search(rf"{field}:\\s*(\\d+)", open("/proc/self/status").read())[1])

a = torch.randn(2**24)
pairs = [(a, a * 1.1), (a[::2], a[1::2]), (a[:2**22].half(), a[:2**22]), (a[:99].long(), a[:99])]
for left, right in pairs:
    compare(left[:2**20], right[:2**20])
open("/proc/self/clear_refs", "w").write("5")
before = kib("VmRSS")
for left, right in pairs:
    compare(left, right)
print(kib("VmHWM") - before)
"""


@pytest.mark.slow
def test_no_memory_for_temporary_tensors(run_python: RunPython) -> None:
    if not os.access("/proc/self/clear_refs", os.W_OK):
        pytest.skip("the peak of a process cannot be reset here: no /proc/self/clear_refs")
    result = run_python("-c", MEMORY)
    assert result.returncode == 0, result.stderr
    assert int(result.stdout) < 1024, "KiB"


NO_TORCH = """
import sys, numpy as np
from my_utils.tensors import compare
a = np.arange(1000.0)
assert compare(a, a.astype(np.float32)).equal
assert "torch" not in sys.modules
"""


def test_without_torch(run_python: RunPython) -> None:
    result = run_python("-c", NO_TORCH)
    assert result.returncode == 0, result.stderr


# --- the result


def test_text_to_paste() -> None:
    a = torch.zeros(2, 3)
    b = a.clone()
    b[1, 2] = 0.5
    assert str(compare(a, b)).splitlines() == [
        "1 of 6 elements differ by more than 1e-05 + 1.3e-06 * |b|",
        "  a is float32, b is float32, shape (2, 3)",
        "  greatest |a - b|: 0.5 at (1, 2)",
        "  greatest |a - b| / |b|: 1.0 at (1, 2)",
        "  cosine nan, SQNR 0.0 dB",
        "  disagree in sign: 0, in NaN: 0, in Inf: 0",
        "  at (1, 2): 0.0, 0.5",
    ]
    same = str(compare(a, a)).splitlines()
    assert same[0].startswith("0 of 6 elements") and same[0].endswith("(equal bit for bit)")
    assert repr(compare(a, b)).startswith("TensorDiff(equal=False, equal_bits=False, elements=6, ")


def test_a_diff_cannot_be_changed_and_travels() -> None:
    diff = compare(torch.tensor([1.0, 2.0]), torch.tensor([1.0, 3.0]))
    with pytest.raises(AttributeError):
        diff.equal = True  # type: ignore[misc]
    copy = pickle.loads(pickle.dumps(diff))
    assert copy == diff and hash(copy) == hash(diff) and str(copy) == str(diff)
    assert diff != compare(torch.tensor([1.0, 2.0]), torch.tensor([1.0, 4.0]))
    with pytest.raises(TypeError, match=r"ask for \.equal"):
        assert diff
    with pytest.raises(TypeError, match="18 values"):
        TensorDiff(True)


def test_how_many_are_listed() -> None:
    a, b = torch.zeros(300_000), torch.zeros(300_000)
    b[::1000] = 1
    for wanted in (0, 1, 10, 299, 300, 10**12):
        diff = compare(a, b, max_mismatches=wanted)
        assert [index for (index,), _, _ in diff.first] == list(range(0, 300_000, 1000))[:wanted]
        assert diff.mismatches == 300


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"atol": -1e-9}, ValueError, "atol must not be negative, not -1e-09"),
        ({"rtol": NAN}, ValueError, "rtol must be finite, not nan"),
        ({"atol": INF}, ValueError, "atol must be finite, not inf"),
        ({"rtol": "1"}, TypeError, "rtol must be a number, not str ('1')"),
        ({"equal_nan": 1}, TypeError, "equal_nan must be True or False, not int (1)"),
        ({"max_mismatches": -1}, ValueError, "max_mismatches must be from 0 to"),
        ({"max_mismatches": 2.0}, TypeError, "max_mismatches must be int, not float (2.0)"),
        ({"tolerance": 1}, TypeError, "tolerance"),
    ],
)
def test_wrong_arguments(options: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error) as raised:
        compare(torch.zeros(1), torch.zeros(1), **options)
    assert message in str(raised.value)


def test_the_documentation() -> None:
    assert compare is _core.compare
    assert list(inspect.signature(compare).parameters)[:2] == ["a", "b"]
    test = doctest.DocTestParser().get_doctest(
        compare.__doc__ or "", {"compare": compare}, "compare", None, None
    )
    assert test.examples
    assert doctest.DocTestRunner().run(test).failed == 0
