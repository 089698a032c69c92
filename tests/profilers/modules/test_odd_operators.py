"""Operators that take functions, functorch's transforms, nested tensors: no tool that sees
operators may raise in the program's forward or change its results."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest

pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("pandas", reason="pandas is not installed")

import torch
import torch.nn.functional as F
from torch import nn

from my_utils.compare_tool import CompareWithCPU, NanInfTracker, OpRecorder
from my_utils.core import warnings
from my_utils.module_hook import ForwardTraceRecorder
from my_utils.moduleProfiler import ModuleProfiler

from ...support.variants import gate_runs

Forward = Callable[[nn.Module, torch.Tensor], torch.Tensor]


def cond(lin: nn.Module, x: torch.Tensor) -> Any:
    return torch.cond(x.sum() > 0, lambda a: lin(a).sin(), lambda a: a.cos(), (x,))


def while_loop(lin: nn.Module, x: torch.Tensor) -> Any:
    from torch._higher_order_ops.while_loop import while_loop

    start = (torch.tensor(0), lin(x).detach())
    return while_loop(lambda i, a: i < 3, lambda i, a: (i + 1, a * 1.5), start)[1]


def scan(lin: nn.Module, x: torch.Tensor) -> Any:
    from torch._higher_order_ops.scan import scan

    return scan(lambda c, a: (c + a, c * a), x[0], lin(x).detach())[1]


def mapped(lin: nn.Module, x: torch.Tensor) -> Any:
    from torch._higher_order_ops.map import map as map_op

    def doubled(a: torch.Tensor, *rest: Any) -> torch.Tensor:
        return a.sin() * 2

    return map_op(doubled, lin(x))


def flex(lin: nn.Module, x: torch.Tensor) -> Any:
    from torch.nn.attention.flex_attention import flex_attention

    with torch.no_grad():
        q = F.pad(lin(x), (0, 12)).repeat(32, 1)[None, None]
        return flex_attention(q, q, q)


def hints(lin: nn.Module, x: torch.Tensor) -> Any:
    operator = torch.ops.higher_order.hints_wrapper
    return operator(lambda a: a.sin() @ a, (lin(x).detach(),), {}, hints={})


def compiled_inside(lin: nn.Module, x: torch.Tensor) -> Any:
    return torch.compile(lambda a: (a @ a).tanh(), backend="aot_eager")(lin(x))


def grad(lin: nn.Module, x: torch.Tensor) -> Any:
    return torch.func.grad(lambda a: lin(a).square().sum())(x)


def jacrev(lin: nn.Module, x: torch.Tensor) -> Any:
    return torch.func.jacrev(lambda a: lin(a).tanh())(x)


def hessian(lin: nn.Module, x: torch.Tensor) -> Any:
    return torch.func.hessian(lambda a: lin(a).tanh().sum())(x)


def vmap_of_grad(lin: nn.Module, x: torch.Tensor) -> Any:
    weights = {name: weight.detach() for name, weight in lin.named_parameters()}

    def loss(given: Any, row: torch.Tensor) -> Any:
        return torch.func.functional_call(lin, given, (row,)).square().sum()

    return torch.vmap(torch.func.grad(loss), (None, 0))(weights, x)["weight"]


def jagged(lin: nn.Module, x: torch.Tensor) -> Any:
    rows = torch.nested.nested_tensor([x, x[:2]], layout=torch.jagged)
    return lin(rows).values()


def strided_nested(lin: nn.Module, x: torch.Tensor) -> Any:
    rows = torch.nested.nested_tensor([x, x[:2]], layout=torch.strided)
    return torch.nested.to_padded_tensor(lin(rows), 0.0)


def jagged_attention(lin: nn.Module, x: torch.Tensor) -> Any:
    rows = torch.nested.nested_tensor([x, x[:2]], layout=torch.jagged)
    heads = rows.unflatten(-1, (2, 2)).transpose(1, 2)
    return F.scaled_dot_product_attention(heads, heads, heads).values()


def inference(lin: nn.Module, x: torch.Tensor) -> Any:
    with torch.inference_mode():
        return F.layer_norm(lin(x), (4,)).clone()


QUICK: list[Forward] = [
    *(grad, jacrev, hessian, vmap_of_grad, jagged, strided_nested, jagged_attention, inference)
]
TRACED: list[Forward] = [cond, while_loop, scan, mapped, flex, hints, compiled_inside]


class Model(nn.Module):
    def __init__(self, work: Forward) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.lin = nn.Linear(4, 4)
        self.work = work

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.work(self.lin, x)


def run(model: nn.Module, tool: Any) -> list[torch.Tensor]:
    """The result of a step, and the gradients."""
    model.zero_grad()
    torch.manual_seed(1)
    x = torch.rand(4, 4)
    with tool:
        result = model(x)
        if result.requires_grad:
            result.sum().backward()
    found = [result.detach(), *(p.grad for p in model.parameters() if p.grad is not None)]
    return [tensor.clone() for tensor in found]


def quietly(tool: Any) -> Any:
    """The tool, whose block does not end with an error where nothing could be tested."""
    tool._end_untested = lambda text: None
    return tool


TOOLS: dict[str, Callable[[nn.Module], Any]] = {
    "flops": lambda model: ModuleProfiler(model, flops=True),
    "memory": lambda model: ModuleProfiler(model, memory=True),
    "all": lambda model: ModuleProfiler(model, flops=True, memory=True, backward=True),
    "float64": lambda model: quietly(CompareWithCPU(reference="float64", verbose=False)),
    "cpu": lambda model: quietly(CompareWithCPU(verbose=False)),
    "nan": lambda model: quietly(NanInfTracker()),
    "operators": lambda model: OpRecorder(),
    "modules": lambda model: ForwardTraceRecorder(model, record_param_hash=True, stats=True),
}


def check(work: Forward) -> None:
    model = Model(work)
    bare = run(model, contextlib.nullcontext())
    for name, tool in TOOLS.items():
        torch._dynamo.reset()
        found = run(model, tool(model))
        assert len(found) == len(bare) and all(map(torch.equal, found, bare)), name


@pytest.mark.parametrize("work", QUICK, ids=lambda work: work.__name__)
def test_forwards_go_on(work: Forward) -> None:
    check(work)


@pytest.mark.slow
@pytest.mark.parametrize(
    "work", gate_runs(("cond", "flex", "hints"), TRACED, lambda work: work.__name__)
)
def test_forwards_that_take_functions_go_on(work: Forward) -> None:
    check(work)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("work", "name"), [(scan, "higher_order::scan"), (hints, "higher_order::hints_wrapper")]
)
def test_what_has_no_formula_is_named(
    work: Forward, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    model = Model(work)
    warnings.forget(f"module_flops_{name} (1)")
    with caplog.at_level(logging.WARNING), ModuleProfiler(model, flops=True) as profiler:
        run(model, contextlib.nullcontext())
    attrs = profiler.summary().attrs
    assert attrs["model_flops"] == 2 * 4 * 4 * 4, "those of the linear module"
    assert attrs["flops_uncounted"] == {name: 1}
    said = f"FLOPs not counted of operators without a formula (calls): {name} (1)"
    assert said in [record.message for record in caplog.records]


def test_a_linear_module_of_a_jagged_tensor_is_counted() -> None:
    model = Model(jagged)
    with ModuleProfiler(model, flops=True) as profiler:
        run(model, contextlib.nullcontext())
    assert list(profiler.summary().flops) == [2 * 6 * 4 * 4]


def test_nested_tensors_are_named() -> None:
    model = Model(strided_nested)
    with ModuleProfiler(model, flops=True) as profiler:
        run(model, contextlib.nullcontext())
    assert profiler.summary().attrs["flops_uncounted"]["aten::linear"] == 1


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("no_grad", [torch.no_grad, torch.inference_mode])
def test_attention_in_evaluation(no_grad: Any, masked: bool) -> None:
    """Counted as in training, or named."""
    layer = nn.TransformerEncoderLayer(64, 4, 128, batch_first=True, dropout=0.0)
    model = nn.TransformerEncoder(layer, 3).eval()
    x = torch.randn(2, 10, 64)
    mask = torch.zeros(2, 10, dtype=torch.bool)
    mask[0, 7:] = masked
    with no_grad():
        plain = model(x, src_key_padding_mask=mask if masked else None)
        with ModuleProfiler(model, flops=True) as profiler:
            found = model(x, src_key_padding_mask=mask if masked else None)
    attrs = profiler.summary().attrs
    assert torch.equal(plain, found)
    if masked:
        assert attrs["flops_uncounted"]["aten::_native_multi_head_attention"] == 3
        return
    assert "aten::_native_multi_head_attention" not in attrs["flops_uncounted"]
    attention = 2 * 20 * 64 * 192 + 2 * 20 * 64 * 64 + 8 * 2 * 10 * 10 * 32
    feed_forward, norms, added = 4 * 20 * 64 * 128, 2 * 8 * 1280, 2 * 1280
    assert attrs["model_flops"] == 3 * (attention + feed_forward + norms + added)


def test_a_whole_layer_of_the_encoder_is_counted() -> None:
    """The operator that torch runs where no hooks are on the layer's own modules."""
    layer = nn.TransformerEncoderLayer(64, 4, 128, batch_first=True, dropout=0.0).eval()
    x = torch.randn(2, 10, 64)
    with torch.no_grad(), ModuleProfiler(layer, flops=True, whole=type(layer)) as profiler:
        layer(x)
    attention = 2 * 20 * 64 * 192 + 2 * 20 * 64 * 64 + 8 * 2 * 10 * 10 * 32
    expected = attention + 4 * 20 * 64 * 128 + 2 * 8 * 1280 + 2 * 1280
    assert list(profiler.summary().flops) == [expected]


@pytest.mark.parametrize("mode", [torch.enable_grad, torch.inference_mode])
@pytest.mark.parametrize("layout", ["to_sparse", "to_sparse_csr", "to_sparse_csc"])
def test_products_of_sparse_tensors_are_named_and_not_counted_as_dense(
    mode: Callable[[], Any], layout: str
) -> None:
    sparse = getattr(torch.eye(4), layout)()
    model = Model(lambda lin, x: lin(sparse @ x) + (sparse @ x[0]))
    with mode(), ModuleProfiler(model, flops=True) as profiler:
        model(torch.ones(4, 4))
    attrs = profiler.summary().attrs
    assert attrs["model_flops"] == 2 * 4 * 4 * 4 + 4 * 4, "the linear module, and the sum"
    assert sum(attrs["flops_uncounted"].values()) == 2


@pytest.fixture
def alone() -> Iterator[None]:
    store = torch.distributed.HashStore()  # type: ignore[attr-defined]
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


@pytest.mark.usefixtures("alone")
def test_what_only_moves_values_is_not_named(caplog: pytest.LogCaptureFixture) -> None:
    from torch.distributed import _functional_collectives as collectives

    def moves(lin: nn.Module, x: torch.Tensor) -> Any:
        group: Any = torch.distributed.group.WORLD
        x = collectives.all_gather_tensor(collectives.all_reduce(x, "sum", group), 0, group)
        torch.distributed.all_reduce(x)
        first, second = torch.unsafe_split(x, 2)
        padded = F.pad(torch.cat((first, second))[None], (1, 1), mode="reflect")
        packed = nn.utils.rnn.pack_padded_sequence(padded, [1], batch_first=True)
        F.unfold(padded[None], 2)
        return lin(packed.data[:, :4].contiguous())

    with caplog.at_level(logging.WARNING), ModuleProfiler(Model(moves), flops=True) as profiler:
        profiler.model(torch.ones(4, 4))
    assert profiler.summary().attrs["flops_uncounted"] == {}
    assert not caplog.messages
