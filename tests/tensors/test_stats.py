"""stats and nan_inf_count against two passes of numpy in extended precision."""

from __future__ import annotations

import copy
import doctest
import math
import multiprocessing
import os
import pickle
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor

from my_utils import _core
from my_utils.tensors import NanInfCount, TensorStats, compare, nan_inf_count, stats

from ..support.dtypes import BYTE_FLOATS, COMPLEX, DTYPES, FLOAT4, FLOATS, INTEGERS

pytestmark = pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")

WHOLE_NUMBERS = [torch.bool, *INTEGERS]
FLOAT4_VALUES = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])

Numbers = np.ndarray[Any, Any]


def numbers_of(tensor: Tensor) -> tuple[Numbers, int]:
    """All numbers as float64 in row-major order, and how many an element has."""
    if tensor.dtype == FLOAT4:
        pairs = tensor.contiguous().view(torch.uint8).flatten().numpy()
        codes = np.stack([pairs & 15, pairs >> 4], axis=1).flatten()
        return np.where(codes & 8, -1.0, 1.0) * FLOAT4_VALUES[codes & 7], 2
    if tensor.dtype in COMPLEX:
        wide = tensor.resolve_conj().resolve_neg().clone(memory_format=torch.contiguous_format)
        half = {torch.complex32: torch.float16, torch.complex64: torch.float32}
        parts = wide.as_strided((wide.numel(),), (1,)).view(half.get(tensor.dtype, torch.float64))
        return parts.double().numpy(), 2
    if tensor.dtype == torch.uint64:
        return tensor.contiguous().numpy().astype(np.float64).flatten(), 1
    return tensor.detach().to(torch.float64).contiguous().flatten().numpy(), 1


def first_of(flags: Numbers, parts: int) -> int:
    return int(np.argmax(flags)) // parts if flags.any() else -1


def check_counts(found: TensorStats, numbers: Numbers, parts: int) -> None:
    nans, infs = np.isnan(numbers), np.isinf(numbers)
    assert found.count == numbers.size
    assert found.finite == np.isfinite(numbers).sum()
    assert found.zeros == (numbers == 0).sum()
    assert found.nans == nans.sum()
    assert found.pos_infs == (numbers == np.inf).sum()
    assert found.neg_infs == (numbers == -np.inf).sum()
    assert found.first_nan == first_of(nans, parts)
    assert found.first_inf == first_of(infs, parts)


def is_near(found: float, exact: Any, relative: float, slack: Any = 0.0) -> bool:
    """`exact` is a long double; one beyond float64 is an infinity there."""
    with np.errstate(over="ignore", under="ignore"):
        wanted = float(exact)
    return found == wanted or abs(found - wanted) <= relative * abs(wanted) + slack + 1e-323


def check_moments(found: TensorStats, finite: Numbers) -> None:
    """The bounds that the documentation states."""
    exact = finite.astype(np.longdouble)
    mean = exact.mean()
    assert found.min == finite.min() and found.max == finite.max()
    assert found.abs_max == np.abs(finite).max()
    assert found.min <= found.mean <= found.max
    assert abs(found.mean - mean) <= 1e-12 * np.abs(exact).mean() + 1e-323
    assert is_near(found.l1, np.abs(exact).sum(), 1e-12)
    assert is_near(found.l2, np.sqrt((exact**2).sum()), 1e-12)
    if finite.size > 1:
        deviation = np.sqrt(((exact - mean) ** 2).sum() / (finite.size - 1))
        rounding = 4 * np.finfo(np.longdouble).eps * np.abs(exact).max()  # of numpy's mean
        assert is_near(found.std, deviation, 1e-10, rounding)
    else:
        assert math.isnan(found.std)


def check(tensor: Tensor) -> None:
    found = stats(tensor)
    numbers, parts = numbers_of(tensor)
    check_counts(found, numbers, parts)
    finite = numbers[np.isfinite(numbers)]
    if tensor.dtype in (torch.int64, torch.uint64) and finite.size:
        exact = [int(value) for value in tensor.flatten().numpy()]
        assert (found.min, found.max) == (min(exact), max(exact))
        assert found.abs_max == max(abs(min(exact)), abs(max(exact)))
        assert is_near(found.mean, np.longdouble(finite).mean(), 1e-12) or min(exact) < 0
    elif finite.size:
        check_moments(found, finite)
    else:
        assert math.isnan(found.min) and math.isnan(found.max) and math.isnan(found.abs_max)
        assert math.isnan(found.mean) and math.isnan(found.std)
        assert found.l1 == found.l2 == 0
    assert nan_inf_count(tensor) == (found.nans, found.pos_infs, found.neg_infs)


def any_bits(dtype: torch.dtype, count: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    size = 1 if dtype == FLOAT4 else torch.empty(0, dtype=dtype).element_size()
    raw = torch.randint(0, 256, (count * size,), dtype=torch.uint8, generator=generator)
    return raw % 2 != 0 if dtype == torch.bool else raw.view(dtype)


class TestEveryDtype:
    @pytest.mark.parametrize("dtype", DTYPES, ids=str)
    @pytest.mark.parametrize("count", [0, 1, 2, 15, 16, 17, 100, 4097, 40_000])
    def test_random_bits(self, dtype: torch.dtype, count: int) -> None:
        check(any_bits(dtype, count, seed=count))

    @pytest.mark.parametrize("dtype", [*BYTE_FLOATS, torch.int8, torch.uint8, FLOAT4], ids=str)
    def test_every_byte(self, dtype: torch.dtype) -> None:
        every = torch.arange(256).to(torch.uint8)
        check(every.view(dtype))
        for byte in every:
            check(byte.reshape(1).view(dtype))

    @pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
    def test_every_pattern_of_two_bytes(self, dtype: torch.dtype) -> None:
        every = torch.arange(65536).to(torch.uint16)
        check(every.view(dtype))
        for start in range(0, 65536, 7919):
            check(every[start : start + 3].view(dtype))

    @pytest.mark.parametrize("dtype", [*BYTE_FLOATS, torch.float16, torch.bfloat16], ids=str)
    def test_values_are_those_of_torch(self, dtype: torch.dtype) -> None:
        size = torch.empty(0, dtype=dtype).element_size()
        every = torch.arange(256**size).to(torch.uint8 if size == 1 else torch.uint16).view(dtype)
        diff = compare(every, every.to(torch.float64), atol=0.0, rtol=0.0, equal_nan=True)
        assert diff.equal and diff.elements == 256**size and diff.nan_disagreements == 0

    @pytest.mark.parametrize("dtype", FLOATS, ids=str)
    def test_plain_numbers(self, dtype: torch.dtype) -> None:
        for count in (5, 64, 1000, 5000, 70_001):
            check(torch.randn(count).to(dtype))
            check(torch.relu(torch.randn(count)).to(dtype))


class TestShapesAndStrides:
    @settings(max_examples=60, deadline=None)
    @given(data=st.data())
    def test_any_view(self, data: st.DataObject) -> None:
        dtype = data.draw(st.sampled_from(DTYPES))
        shape = data.draw(st.lists(st.integers(0, 9), max_size=4))
        workable = torch.uint8 if dtype == FLOAT4 else dtype
        whole = any_bits(workable, math.prod(2 * size for size in shape), seed=len(shape))
        view = whole.reshape([2 * size for size in shape])
        for dim, size in enumerate(shape):
            steps = (slice(None),) * dim + (slice(None, None, data.draw(st.integers(1, 3))),)
            view = view.narrow(dim, data.draw(st.integers(0, size)), size)[steps]
        view = view.permute(data.draw(st.permutations(range(view.ndim))))
        check(view.view(FLOAT4) if dtype == FLOAT4 else view)

    @pytest.mark.parametrize("dtype", [torch.float32, torch.int16, torch.complex64], ids=str)
    def test_expanded(self, dtype: torch.dtype) -> None:
        column = any_bits(dtype, 70, seed=1).reshape(70, 1)
        check(column.expand(70, 90))
        check(column.expand(3, 70, 90))
        check(column[0, 0])

    def test_conjugated_and_negated(self) -> None:
        tensor = torch.randn(50, dtype=torch.complex64)
        assert stats(tensor.conj()) == stats(tensor.conj().resolve_conj())
        check(tensor.conj().imag)

    def test_arrays_and_buffers(self) -> None:
        array = np.random.default_rng(1).normal(size=(40, 50))
        wanted = stats(torch.from_numpy(array.T.copy()))
        assert stats(array.T) == wanted
        assert stats(array[:, ::-1]) == stats(torch.from_numpy(array[:, ::-1].copy()))
        assert stats(b"\x00\x01\xff").max == 255
        assert stats(np.array([1, 2], dtype=np.float32)).mean == 1.5

    def test_parameters(self) -> None:
        parameter = torch.nn.Parameter(torch.randn(300))
        check(parameter)
        assert parameter.grad is None


class TestHardNumbers:
    @pytest.mark.parametrize("count", [10, 4096, 100_000])
    @pytest.mark.parametrize(
        "center, width",
        [(1e4, 1e-2), (-1e4, 1e-2), (1e8, 1.0), (1e8, 1e-3), (0, 1e-30), (1, 1e-12), (1e15, 1)],
    )
    def test_far_means(self, center: float, width: float, count: int) -> None:
        noise = torch.randn(count, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
        check(center + width * noise)
        check((center + width * noise).float())

    def test_a_mean_that_wanders(self) -> None:
        steps = torch.arange(60_000, dtype=torch.float64)
        check(steps)
        check(1e6 + steps.sin())
        check(torch.cat([torch.full((5000,), 1e7), torch.full((20_000,), -1e-7)]))

    @pytest.mark.parametrize("value", [0.1, -7.3, 1e300, 1e-310, 65504.0])
    def test_equal_numbers_have_no_deviation(self, value: float) -> None:
        found = stats(torch.full((30_011,), value, dtype=torch.float64))
        assert found.mean == value and found.std == 0
        assert found.l2 == pytest.approx(abs(value) * math.sqrt(30_011), rel=1e-15)

    @pytest.mark.parametrize("size", [1e200, 1e300, 1.5e308, 1e-200, 1e-300, 1e-310, 5e-324])
    def test_squares_outside_float64(self, size: float) -> None:
        noise = torch.rand(9000, dtype=torch.float64, generator=torch.Generator().manual_seed(5))
        check(size * noise)
        check(size * (noise - 0.5))
        mixed = size * (noise - 0.5)
        mixed[::7] = 1.0
        check(mixed)
        mixed[3] = math.nan
        mixed[5000] = -math.inf
        check(mixed)

    @pytest.mark.parametrize("dtype", FLOATS, ids=str)
    def test_extremes(self, dtype: torch.dtype) -> None:
        info = torch.finfo(dtype)
        for numbers in (
            [info.max, info.max],
            [info.max, info.min, info.max],
            [info.tiny, -info.tiny, info.smallest_normal / 2],
            [0.0, -0.0],
            [-0.0],
            [math.nan] * 3,
            [math.inf] * 3,
            [math.inf, -math.inf, math.nan, 1.0],
            [-math.inf, 0.0],
        ):
            tensor = torch.tensor(numbers, dtype=dtype)
            check(tensor)
            check(tensor.repeat(3001))
        assert math.copysign(1, stats(torch.tensor([-0.0], dtype=dtype)).min) == 1

    def test_sums_beyond_float64(self) -> None:
        found = stats(torch.tensor([1.7e308, -1.7e308, 1.7e308], dtype=torch.float64))
        assert found.l1 == found.l2 == math.inf
        assert found.mean == pytest.approx(1.7e308 / 3, rel=1e-15)

    @pytest.mark.parametrize("share", [0.001, 0.5, 0.999])
    @pytest.mark.parametrize("dtype", [*FLOATS, torch.complex64], ids=str)
    def test_masked(self, dtype: torch.dtype, share: float) -> None:
        generator = torch.Generator().manual_seed(7)
        tensor = torch.randn(20_000, generator=generator).to(dtype)
        tensor[torch.rand(20_000, generator=generator) < share] = -math.inf
        tensor[12_345:12_350] = math.nan
        check(tensor)

    def test_long_integers(self) -> None:
        found = stats(torch.tensor([-(2**63), 2**63 - 1]))
        assert (found.min, found.max, found.abs_max) == (-(2**63), 2**63 - 1, 2**63)
        assert found.mean == 0 and type(found.max) is int
        found = stats(torch.tensor([2**64 - 1, 2**63], dtype=torch.uint64))
        assert (found.min, found.max, found.abs_max) == (2**63, 2**64 - 1, 2**64 - 1)
        check(torch.arange(-(2**15), 2**15) * 2**47)

    def test_types_of_the_range(self) -> None:
        for dtype in WHOLE_NUMBERS:
            found = stats(torch.ones(3).to(dtype))
            assert [type(value) for value in (found.min, found.max, found.abs_max)] == [int] * 3
        assert type(stats(torch.ones(3)).max) is float
        assert type(stats(torch.empty(0, dtype=torch.int8)).max) is float

    def test_subnormals_stay_when_the_processor_flushes_them(self) -> None:
        tensor = torch.full((5000,), 1e-45)
        wanted = stats(tensor)
        assert wanted.zeros == 0 and wanted.max > 0
        if not torch.set_flush_denormal(True):
            pytest.skip("this processor cannot flush subnormal numbers to zero")
        try:
            assert stats(tensor) == wanted
        finally:
            torch.set_flush_denormal(False)


@pytest.fixture
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def in_child(queue: Any, tensor: Tensor) -> None:
    queue.put((pickle.dumps(stats(tensor)), nan_inf_count([tensor, tensor])))


class TestThreads:
    @pytest.mark.usefixtures("two_threads")
    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8], ids=str)
    def test_one_result_whatever_their_number(self, dtype: torch.dtype) -> None:
        tensor = any_bits(dtype, 3_000_001, seed=11)
        both = [stats(tensor), stats(tensor.reshape(-1, 1).T), nan_inf_count(tensor)]
        torch.set_num_threads(1)
        assert [stats(tensor), stats(tensor), nan_inf_count(tensor)] == both

    @pytest.mark.usefixtures("two_threads")
    def test_lists_are_shared_out(self) -> None:
        sizes = [0, 1, 64, 300_000, 5, 2_000_000, *range(1000, 300_000, 10_007)]
        tensors = [torch.randn(size) for size in sizes]
        assert stats(tensors) == [stats(tensor) for tensor in tensors]
        assert nan_inf_count(tuple(tensors)) == [(0, 0, 0)] * len(tensors)

    @pytest.mark.usefixtures("two_threads")
    def test_a_forked_child(self) -> None:
        tensor = torch.randn(2_000_000)
        wanted = stats(tensor)
        context = multiprocessing.get_context("fork")
        queue = context.Queue()
        child = context.Process(target=in_child, args=(queue, tensor))
        child.start()
        found, counts = queue.get(timeout=110)
        child.join(110)
        assert child.exitcode == 0
        assert pickle.loads(found) == wanted and counts == [(0, 0, 0)] * 2


class TestArguments:
    @pytest.mark.parametrize("function", [stats, nan_inf_count])
    def test_lists(self, function: Any) -> None:
        tensor = torch.randn(3)
        assert function([tensor]) == [function(tensor)]
        assert function(()) == []

    @pytest.mark.parametrize("function", [stats, nan_inf_count])
    @pytest.mark.parametrize("wrong", [None, 3, "text", [1.0], torch.empty(2, device="meta")])
    def test_what_is_no_tensor(self, function: Any, wrong: Any) -> None:
        with pytest.raises(TypeError, match="tensors"):
            function(wrong)

    def test_the_functions_are_the_c_functions(self) -> None:
        assert stats is _core.stats and nan_inf_count is _core.nan_inf_count

    @pytest.mark.parametrize("function", [stats, nan_inf_count])
    def test_the_examples_run(self, function: Any) -> None:
        finder = doctest.DocTestFinder()
        runner = doctest.DocTestRunner()
        for example in finder.find(function, function.__name__, globs={}):
            assert runner.run(example).failed == 0
        assert runner.tries > 0


class TestTensorStats:
    found = stats(torch.tensor([1.0, math.nan, -2.0]))

    def test_repr_makes_it_anew(self) -> None:
        assert eval(repr(self.found), {"TensorStats": TensorStats, "nan": math.nan}) == self.found
        empty = stats(torch.empty(0))
        assert eval(repr(empty), {"TensorStats": TensorStats, "nan": math.nan}) == empty

    def test_dict(self) -> None:
        fields = self.found.as_dict()
        assert list(fields)[:4] == ["count", "finite", "min", "max"] and len(fields) == 15
        assert TensorStats(**fields) == self.found
        assert fields["first_nan"] == 1

    def test_copies(self) -> None:
        for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1):
            again = pickle.loads(pickle.dumps(self.found, protocol))
            assert again == self.found and hash(again) == hash(self.found)
        assert copy.deepcopy(self.found) == self.found
        longs = stats(torch.tensor([2**64 - 1], dtype=torch.uint64))
        assert pickle.loads(pickle.dumps(longs)).max == 2**64 - 1

    def test_nan_equals_nan(self) -> None:
        assert stats(torch.empty(0)) == stats(torch.empty(0))
        assert len({stats(torch.empty(0)), stats(torch.empty(0))}) == 1

    def test_unequal(self) -> None:
        assert self.found != stats(torch.tensor([1.0, math.nan, -2.5]))
        assert self.found != stats(torch.tensor([1.0, -2.0, math.nan]))
        assert self.found != 3

    def test_immutable(self) -> None:
        for name in ("min", "count", "mean", "anything"):
            with pytest.raises((AttributeError, TypeError)):
                setattr(self.found, name, 0)

    @pytest.mark.parametrize("wrong", [(), (1,) * 14, ("1",) * 15, (1, 1, None, *(1,) * 12)])
    def test_wrong_fields(self, wrong: tuple[Any, ...]) -> None:
        with pytest.raises(TypeError):
            TensorStats(*wrong)


class TestNanInfCount:
    found = nan_inf_count(torch.tensor([math.nan, math.inf, -math.inf, -math.inf, 1.0]))

    def test_names_and_places(self) -> None:
        nan, pos_inf, neg_inf = self.found
        assert (nan, pos_inf, neg_inf) == (1, 1, 2)
        assert (self.found.nan, self.found.pos_inf, self.found.neg_inf) == (1, 1, 2)
        assert repr(self.found) == "NanInfCount(nan=1, pos_inf=1, neg_inf=2)"

    def test_pickle(self) -> None:
        again = pickle.loads(pickle.dumps(self.found))
        assert again == self.found and type(again) is NanInfCount

    def test_any_says_whether_all_is_finite(self) -> None:
        assert any(self.found)
        assert not any(nan_inf_count(torch.ones(5)))

    @pytest.mark.parametrize("dtype", [*FLOATS, *BYTE_FLOATS, *COMPLEX], ids=str)
    def test_one_anywhere(self, dtype: torch.dtype) -> None:
        tensor = torch.ones(3000, dtype=torch.float32).to(dtype)
        for place in (0, 1, 31, 32, 1023, 2048, 2999):
            spoiled = tensor.clone()
            spoiled[place] = math.nan
            assert nan_inf_count(spoiled).nan >= 1
            check(spoiled)


@pytest.mark.skipif(not os.path.exists("/proc/self/status"), reason="needs /proc")
def test_no_temporary_memory() -> None:
    def peak_kib() -> int:
        with open("/proc/self/status", encoding="ascii") as file:
            return int(next(line for line in file if line.startswith("VmHWM")).split()[1])

    tensor = torch.randn(4096, 4096).T
    stats(tensor[:64])
    before = peak_kib()
    stats(tensor)
    nan_inf_count(tensor)
    assert peak_kib() - before < 8192  # a byte an element would be twice that
