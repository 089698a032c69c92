"""FLOPs from shapes: against torch's counter, and against operations counted one by one."""

from __future__ import annotations

import functools
import itertools
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

pytest.importorskip("torch", reason="torch is not installed")
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from my_utils.profilers.torch_profiler.flops import (
    ELEMENTWISE,
    NORMALISATION,
    count_flops,
    formulas,
)

PRODUCTS = {
    name: formula
    for name, formula in formulas().items()
    if name not in NORMALISATION and name not in ELEMENTWISE
}

sizes = st.integers(1, 6)


def flops(work: Callable[[], object], known: Any = None) -> Counter[str]:
    with torch.profiler.profile(record_shapes=True) as profiler:
        work()
    return count_flops(profiler, known).counted


def of_torch(work: Callable[[], object]) -> int:
    with FlopCounterMode(display=False) as counter:
        work()
    return int(counter.get_total_flops())


def grad(*shape: int) -> Any:
    return torch.randn(*shape, requires_grad=True)


def backward(result: Any) -> None:
    # Without sums and additions, which torch's counter does not know.
    result.backward(torch.randn(result.shape))


# --- against FlopCounterMode ---


@settings(max_examples=12, deadline=None)
@given(b=sizes, m=sizes, n=sizes, k=sizes)
def test_products(b: int, m: int, n: int, k: int) -> None:
    x, y, batch, other = grad(m, k), grad(k, n), grad(b, m, k), grad(b, k, n)
    weight, bias = grad(n, k), grad(n)

    def work() -> None:
        backward(x @ y)
        backward(torch.addmm(bias, x, y))
        backward(batch @ other)
        backward(torch.baddbmm(bias, batch, other))
        backward(F.linear(batch, weight, bias))
        backward(F.linear(x, weight))
        backward(torch.einsum("bmk,bkn->bnm", batch, other))
        backward(torch.einsum("bmk,nk->bmn", batch, weight))

    assert sum(flops(work, PRODUCTS).values()) == of_torch(work) > 0


@pytest.mark.parametrize("left", [(48, 48), (3, 48, 48)])
@pytest.mark.parametrize("right", [(48, 48), (3, 48, 48)])
def test_products_of_groups(left: tuple[int, ...], right: tuple[int, ...]) -> None:
    """As of the experts of a mixture, against the products of the groups one by one."""
    x, y = (torch.randn(shape, dtype=torch.bfloat16) for shape in (left, right))
    divides = x.dim() == 2 or y.dim() == 2
    ends = torch.tensor([8, 16, 48], dtype=torch.int32)

    def alone() -> None:
        for group, (begin, end) in enumerate([(0, 8), (8, 16), (16, 48)]):
            part = slice(begin, end) if divides else slice(None)
            if y.dim() == 3:
                torch.mm(x[part] if x.dim() == 2 else x[group], y[group])
            else:
                torch.mm(x[:, part], y[part]) if x.dim() == 2 else torch.mm(x[group], y[:, part])

    def together() -> None:
        torch._grouped_mm(x, y.mT.contiguous().mT, offs=ends if divides else None)

    assert flops(together)["aten::_grouped_mm"] == of_torch(alone) > 0


def test_products_with_vectors() -> None:
    x, v = torch.randn(3, 4), torch.randn(4)

    def work() -> None:
        torch.mv(x, v)
        torch.dot(v, v)
        torch.addmv(torch.randn(3), x, v)
        torch.addbmm(torch.randn(3, 5), torch.randn(2, 3, 4), torch.randn(2, 4, 5))

    assert flops(work) == {
        "aten::mv": 2 * 3 * 4,
        "aten::dot": 2 * 4,
        "aten::addmv": 2 * 3 * 4,
        "aten::addbmm": 2 * 2 * 3 * 4 * 5,
    }


@settings(max_examples=25, deadline=None)
@given(
    dims=st.integers(1, 3), batch=st.integers(1, 3), channels=st.tuples(sizes, sizes),
    size=st.integers(5, 8), kernel=st.integers(1, 3), stride=st.integers(1, 3),
    padding=st.integers(0, 2), dilation=st.integers(1, 2), transposed=st.booleans(),
    wanted=st.tuples(st.booleans(), st.booleans()).filter(any),
)  # fmt: skip
def test_convolutions(
    dims: int, batch: int, channels: tuple[int, int], size: int, kernel: int, stride: int,
    padding: int, dilation: int, transposed: bool, wanted: tuple[bool, bool],
) -> None:  # fmt: skip
    name = f"conv_transpose{dims}d" if transposed else f"conv{dims}d"
    if transposed:  # the output must not be empty
        padding = min(padding, dilation * (kernel - 1) // 2)
    weight_channels = channels if transposed else channels[::-1]
    weight = torch.randn(*weight_channels, *[kernel] * dims, requires_grad=wanted[1])
    x = torch.randn(batch, channels[0], *[size] * dims, requires_grad=wanted[0])

    def work() -> None:
        kwargs = {"stride": stride, "padding": padding, "dilation": dilation}
        backward(getattr(F, name)(x, weight, grad(channels[1]), **kwargs))

    found = flops(work, PRODUCTS)
    assert set(found) == {f"aten::{name}", "aten::convolution_backward"}
    assert sum(found.values()) == of_torch(work) > 0


@settings(max_examples=10, deadline=None)
@given(b=sizes, heads=sizes, groups=st.integers(1, 2), s=sizes, t=sizes, d=st.integers(1, 8))
def test_attention(b: int, heads: int, groups: int, s: int, t: int, d: int) -> None:
    # On the meta device each kernel's operator runs, and torch's counter knows these. Our own are
    # counted from the same shapes.
    query = torch.empty(b, heads * groups, s, 8 * d, device="meta")
    key = torch.empty(b, heads, t, 8 * d, device="meta")
    ops = torch.ops.aten

    def forward() -> None:
        ops._scaled_dot_product_efficient_attention(query, key, key, None, True)
        if groups == 1:
            ops._scaled_dot_product_flash_attention(query, key, key)

    def both() -> None:
        forward()
        out, lse, q, k, m, n, seed, offset, _ = ops._scaled_dot_product_flash_attention(
            query, key, key
        )
        ops._scaled_dot_product_flash_attention_backward(
            out, query, key, key, out, lse, q, k, m, n, 0.0, False, seed, offset
        )

    def with_keys_of_all_heads() -> None:  # the counter of torch 2.11 refuses fewer
        of_all = key.repeat_interleave(groups, dim=1)
        ops._scaled_dot_product_efficient_attention(query, of_all, of_all, None, True)

    work, oracle = (both, both) if groups == 1 else (forward, with_keys_of_all_heads)
    assert sum(flops(work, PRODUCTS).values()) == of_torch(oracle) > 0


def test_attention_on_the_cpu_is_that_of_other_kernels() -> None:
    q, k = grad(2, 3, 5, 8), grad(2, 3, 7, 8)
    found = flops(lambda: backward(F.scaled_dot_product_attention(q, k, k)), PRODUCTS)
    score = 2 * (2 * 3) * 5 * 7 * 8
    assert found == {
        "aten::scaled_dot_product_attention": 2 * score,
        "aten::_scaled_dot_product_flash_attention_for_cpu_backward": 5 * score,
    }
    with nn.attention.sdpa_kernel(nn.attention.SDPBackend.MATH):
        plain = flops(lambda: F.scaled_dot_product_attention(q, k, k), PRODUCTS)
    assert plain == {"aten::scaled_dot_product_attention": 2 * score}


def test_a_model_counts_as_much_as_with_torch() -> None:
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding="same"), nn.BatchNorm2d(8), nn.ReLU(),
        nn.ConvTranspose2d(8, 4, 2), nn.Flatten(2), nn.LayerNorm(81), nn.Linear(81, 16),
        nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, dropout=0.0), nn.GRU(16, 8),
    )  # fmt: skip
    with nn.attention.sdpa_kernel(nn.attention.SDPBackend.MATH):
        x = torch.randn(2, 3, 8, 8)

        def work() -> None:
            with torch.backends.mkldnn.flags(enabled=False):
                backward(model(x)[0])

        assert sum(flops(work, PRODUCTS).values()) == of_torch(work) > 0


# --- by hand ---


def test_groups_divide_the_work() -> None:
    x, y = grad(2, 4, 9), torch.randn(2, 6, 7)
    weight = grad(6, 2, 3)  # 6 outputs of 2 of the 4 inputs each
    multiplications = 0
    for _, out, _ in itertools.product(range(2), range(6), range(7)):
        first = 0 if out < 3 else 2
        multiplications += sum(1 for _ in itertools.product(range(first, first + 2), range(3)))
    work = flops(lambda: F.conv1d(x, weight, groups=2).backward(y))
    assert work["aten::conv1d"] == 2 * multiplications
    assert work["aten::convolution_backward"] == 2 * work["aten::conv1d"]


def test_a_sample_without_batch_and_padding_by_name() -> None:
    x = torch.randn(3, 8, 8)
    for kernel in (2, 3):
        weight = torch.randn(5, 3, kernel, kernel)
        found = flops(functools.partial(F.conv2d, x, weight, padding="same"))
        assert found == {"aten::conv2d": 2 * 8 * 8 * 5 * 3 * kernel * kernel}


@pytest.mark.parametrize(
    ("work", "expected"),
    [
        (lambda x: x + x[0], {"aten::add": 24}),
        (lambda x: x.mul_(2), {"aten::mul_": 24}),
        (lambda x: 1 - x, {"aten::rsub": 24}),
        (lambda x: x / x[:, :1], {"aten::div": 24}),
        (lambda x: x[:1] * x[:, :1], {"aten::mul": 24}),
        (lambda x: x.sqrt(), {"aten::sqrt": 24}),
        (lambda x: x**2, {"aten::pow": 24}),
        (lambda x: x**3, {"aten::pow": 48}),
        (lambda x: x**0.3, {}),
        (lambda x: x.addcmul(x, x), {"aten::addcmul": 48}),
        (lambda x: x.addcdiv_(x, x, value=0.1), {"aten::addcdiv_": 72}),
        (lambda x: x.mean(), {"aten::mean": 24}),
        (lambda x: x.sum(0), {"aten::sum": 24}),
        (lambda x: x.exp().tanh().relu().clone().t(), {}),
        (lambda x: torch.arange(24) + torch.arange(24), {}),
        (lambda x: torch.arange(24) * 2 + 0.5, {"aten::add": 24}),
        (lambda x: x.bfloat16() + 1, {"aten::add": 24}),
    ],
)  # fmt: skip
def test_elements(work: Callable[[Any], object], expected: dict[str, int]) -> None:
    x = torch.rand(4, 6)
    assert +flops(lambda: work(x)) == expected


# --- norms, against operations counted in plain implementations ---


class Number:
    """A float whose operations are counted."""

    operations = 0

    def __init__(self, value: float) -> None:
        self.value = float(value)

    def __add__(self, other: Number | float) -> Number:
        return counted(self, other, lambda a, b: a + b)

    def __sub__(self, other: Number | float) -> Number:
        return counted(self, other, lambda a, b: a - b)

    def __mul__(self, other: Number | float) -> Number:
        return counted(self, other, lambda a, b: a * b)

    def __truediv__(self, other: Number | float) -> Number:
        return counted(self, other, lambda a, b: a / b)

    def rsqrt(self) -> Number:
        return counted(self, 0, lambda a, _: (a + 1e-5) ** -0.5)


def counted(a: Number, b: Number | float, result: Callable[[float, float], float]) -> Number:
    Number.operations += 1
    return Number(result(a.value, b.value if isinstance(b, Number) else b))


Row = list[Number]


def total(values: Iterable[Number]) -> Number:
    return sum(values, Number(0))


def mean(values: Row) -> Number:
    return total(values) / len(values)


def moments(x: Row) -> tuple[Number, Number]:
    """The mean, and one by the standard deviation."""
    middle = mean(x)
    differences = [v - middle for v in x]
    return middle, mean([d * d for d in differences]).rsqrt()


def kept(result: Callable[[Row], Any], x: Row) -> Any:
    """What the backward pass has from the forward pass."""
    before = Number.operations
    value = result(x)
    Number.operations = before
    return value


def channel_norm(x: Row, w: Row, b: Row, dy: Row) -> Row:
    middle, r = moments(x)
    scale = w[0] * r
    shift = b[0] - middle * scale
    return [v * scale + shift for v in x]


def channel_norm_backward(x: Row, w: Row, b: Row, dy: Row) -> Row:
    middle, r = kept(moments, x)
    sum_dy, sum_dyx = total(dy), total(d * v for d, v in zip(dy, x, strict=True))
    dw = (sum_dyx - sum_dy * middle) * r
    first = w[0] * r
    second = first * r * dw / -len(x)
    third = first * sum_dy / -len(x) - second * middle
    return [first * d + second * v + third for d, v in zip(dy, x, strict=True)]


def row_norm(x: Row, w: Row, b: Row, dy: Row) -> Row:
    middle, r = moments(x)
    shift = middle * r * -1
    return [(v * r + shift) * w[i] + b[i] for i, v in enumerate(x)]


def row_norm_backward(x: Row, w: Row, b: Row, dy: Row) -> Row:
    middle, r = kept(moments, x)
    normal = [(v - middle) * r for v in x]
    g = [d * w[i] for i, d in enumerate(dy)]
    second = total(d * v for d, v in zip(g, normal, strict=True)) * r / -len(x)
    third = mean(g) * r * -1
    for d, v in zip(dy, normal, strict=True):
        _ = (Number(0) + d * v, Number(0) + d)  # into the gradients of weight and bias
    return [r * d + second * v + third for d, v in zip(g, normal, strict=True)]


def rms_norm(x: Row, w: Row, b: Row, dy: Row) -> Row:
    r = mean([v * v for v in x]).rsqrt()
    return [v * r * w[i] for i, v in enumerate(x)]


def rms_norm_backward(x: Row, w: Row, b: Row, dy: Row) -> Row:
    r = kept(lambda x: mean([v * v for v in x]).rsqrt(), x)
    normal = [v * r for v in x]
    g = [d * w[i] for i, d in enumerate(dy)]
    second = total(d * v for d, v in zip(g, normal, strict=True)) * r / -len(x)
    for d, v in zip(dy, normal, strict=True):
        _ = Number(0) + d * v  # into the gradient of the weight
    return [r * d + second * v for d, v in zip(g, normal, strict=True)]


def by_torch(kind: str, x: Any, w: Any, b: Any) -> Any:
    if kind == "channel":
        return F.batch_norm(x.view(1, 1, -1), None, None, w, b, training=True).view(-1)
    if kind == "row":
        return F.layer_norm(x, x.shape, w, b)
    return F.rms_norm(x, x.shape, w, eps=1e-5)


def operations(plain: Callable[..., Row], n: int) -> int:
    """Of the plain implementation for n elements, whose results are those of torch."""
    kind = plain.__name__.split("_")[0]
    torch.manual_seed(n)
    x, w, b, dy = (torch.randn(1 if kind == "channel" and i in (1, 2) else n) for i in range(4))
    expected = by_torch(kind, x.requires_grad_(), w, b)
    if plain.__name__.endswith("backward"):
        (expected,) = torch.autograd.grad(expected, x, dy)
    rows = [[Number(v) for v in vector.tolist()] for vector in (x, w, b, dy)]
    Number.operations = 0
    found = torch.tensor([number.value for number in plain(*rows)])
    torch.testing.assert_close(found, expected.detach(), atol=1e-4, rtol=1e-4)
    return Number.operations


@pytest.mark.parametrize(
    ("plain", "names"),
    [
        (channel_norm, {"aten::native_batch_norm": 5, "aten::native_group_norm": 0}),
        (
            channel_norm_backward,
            {"aten::native_batch_norm_backward": 7, "aten::native_group_norm_backward": 0},
        ),
        (row_norm, {"aten::native_layer_norm": 0}),
        (row_norm_backward, {"aten::native_layer_norm_backward": 7}),
        (rms_norm, {"aten::_fused_rms_norm": 0}),
        (rms_norm_backward, {"aten::_fused_rms_norm_backward": 0}),
    ],
)
def test_norms(plain: Callable[..., Row], names: dict[str, int]) -> None:
    # What does not grow with the length is of lower order, and drops out of the difference.
    an_element = (operations(plain, 96) - operations(plain, 32)) / 64
    everything = [True, True, True]
    for name in names:
        args: list[Any] = [[2, 8, 4]] * 10
        args[5] = args[7] = True
        args[9] = everything
        if name == "aten::native_layer_norm_backward":
            args[5], args[7] = args[0], everything
        if name == "aten::_fused_rms_norm_backward":
            args[5] = [True, True]
        assert NORMALISATION[name](args) == an_element * 64, name


def test_norms_in_a_model() -> None:
    x = grad(2, 8, 5)
    n = 80
    found = flops(lambda: backward(nn.BatchNorm1d(8)(x)), NORMALISATION)
    assert found == {"aten::batch_norm": 6 * n, "aten::native_batch_norm_backward": 7 * n}
    found = flops(lambda: backward(nn.BatchNorm1d(8).eval()(x)), NORMALISATION)
    assert found == {"aten::batch_norm": 2 * n, "aten::native_batch_norm_backward": 4 * n}
    found = flops(lambda: backward(nn.GroupNorm(2, 8)(x)), NORMALISATION)
    assert found == {"aten::group_norm": 6 * n, "aten::native_group_norm_backward": 7 * n}
    found = flops(lambda: backward(nn.LayerNorm(5)(x)), NORMALISATION)
    assert found == {"aten::layer_norm": 8 * n, "aten::native_layer_norm_backward": 13 * n}
    found = flops(lambda: backward(nn.LayerNorm(5, bias=False)(x.detach())), NORMALISATION)
    assert found == {"aten::layer_norm": 7 * n, "aten::native_layer_norm_backward": 4 * n}
    found = flops(lambda: backward(nn.InstanceNorm1d(8)(x)), NORMALISATION)
    assert found == {"aten::instance_norm": 6 * n, "aten::native_batch_norm_backward": 7 * n}
    assert flops(lambda: nn.RMSNorm(5)(x), NORMALISATION) == {"aten::rms_norm": 4 * n}


# --- what cannot be counted ---


def test_without_shapes_nothing_is_counted() -> None:
    with torch.profiler.profile() as profiler:
        torch.ones(3, 3) @ torch.ones(3, 3)
    assert not count_flops(profiler).counted


def test_lists_sparse_and_nested_tensors_do_no_harm() -> None:
    def work() -> None:
        torch._foreach_add([torch.ones(3)], 1.0)
        torch.eye(3).to_sparse() @ torch.ones(3, 2)
        a = torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(4, 3)])
        F.linear(a, torch.ones(5, 3))

    flops(work)


# --- what has no formula ---


def test_what_is_not_counted_is_named() -> None:
    x = torch.randn(6, 6)

    def work() -> None:
        torch.exp(x)
        x.exp_().exp()
        F.linear(x, x)
        x.t().reshape(4, 9).clone().copy_(torch.empty(4, 9))
        torch.cat([x, x])[:2].max()
        torch.sort(x)

    with torch.profiler.profile(record_shapes=True) as profiler:
        work()
    found = count_flops(profiler).calls_uncounted
    # No view, no copy, no comparison, and not linear, which is counted at what it calls.
    assert found == {"aten::exp": 2, "aten::exp_": 1}
