"""Operators that are hard to run twice, and results that are hard to compare."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="torch is not installed")

import torch
from torch import nn

from my_utils.compare_tool import (
    CompareError,
    CompareWithCPU,
    NanInfTracker,
    compare_for_single_op,
)
from my_utils.profilers.operators.inputs import converted, copied
from my_utils.tensors import tensor_hash

from ...support.op_faults import Change, Fault, first_element, one_wrong_element, other_strides
from ...support.ranks import Ranks

aten = torch.ops.aten
pytestmark = pytest.mark.usefixtures("same_numbers")


def compared(run: Callable[[], object], **given: Any) -> CompareWithCPU:
    with CompareWithCPU(**{"verbose": False, **given}) as compare:
        run()
    assert compare.errors == 0
    return compare


def failing(op: Any, change: Change, run: Callable[[], object], **given: Any) -> list[str]:
    """The operators that fail when `change` is planted into the first call of `op`."""
    with Fault(op, change) as fault:
        compare = compared(run, **given)
    assert fault.planted
    return [row.op for row in compare.summary.rows if row.failed]


# --- inputs ---


@pytest.mark.parametrize("left", [0, 400])
def test_inputs_whose_memory_was_freed(left: int, tmp_path: Path) -> None:
    """As sharded parameters are between their uses: `zeros_like` needs their shape only."""
    freed = torch.ones(100, 100)
    freed.untyped_storage().resize_(left)
    tracker = NanInfTracker(dump_error_data=True, output_dir=tmp_path)
    with CompareWithCPU(verbose=False) as compare, tracker:
        zeros = torch.zeros_like(freed)
        assert (zeros + 1).sum() == 10_000
    assert compare.errors == tracker.errors == 1 and compare.summary.failed == 0


def test_inputs_of_in_place_operators_are_those_before_the_call(tmp_path: Path) -> None:
    x = torch.tensor([1.0, 2.0, 3.0])
    tool = CompareWithCPU(verbose=False, dump_error_data=True, output_dir=tmp_path)
    with pytest.raises(CompareError), Fault(aten.mul_, lambda result: result.add_(1)), tool:
        x.mul_(2)
    inputs = torch.load(tmp_path / "torch.ops.aten.mul__inputs.pkl", weights_only=True)
    assert inputs["args"][0].tolist() == [1, 2, 3]
    outputs = torch.load(tmp_path / "torch.ops.aten.mul__outputs.pkl", weights_only=True)
    assert outputs["written"][0].tolist() == [3, 5, 7]
    correct, args, _, _ = compare_for_single_op(
        tmp_path / "torch.ops.aten.mul__inputs.pkl", aten.mul_
    )
    assert correct and args[0].tolist() == [2, 4, 6]


def test_out_arguments_are_compared() -> None:
    def run() -> None:
        torch.add(torch.ones(3), torch.ones(3), out=torch.empty(3))

    assert compared(run).summary.failed == 0
    assert failing(aten.add.out, lambda out: out.add_(1), run) == ["torch.ops.aten.add"]


def test_batch_norm_writes_its_statistics_once() -> None:
    norm, plain = nn.BatchNorm1d(4), nn.BatchNorm1d(4)
    x = torch.randn(8, 4)
    plain(x)
    assert compared(lambda: norm(x)).summary.failed == 0
    mine, theirs = dict(norm.named_buffers()), dict(plain.named_buffers())
    assert all(torch.equal(mine[name], theirs[name]) for name in mine)

    def spoil(result: Any) -> Any:
        mine["running_mean"][0] += 1
        return result

    assert failing(aten.native_batch_norm, spoil, lambda: norm(x)) == [
        "torch.ops.aten.native_batch_norm"
    ]


def test_lists_of_foreach_operators_are_compared() -> None:
    def run() -> None:
        torch._foreach_add_([torch.ones(2), torch.ones(3)], 1.0)

    class InPlace(Fault):
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            result = func(*args, **(kwargs or {}))
            if func.overloadpacket is self.op:
                args[0][1][2] += 1
            return result

    assert compared(run).summary.passed
    with InPlace(aten._foreach_add_, copy.copy):
        assert compared(run).summary.failed == 1


def test_copies_keep_strides_views_and_aliasing() -> None:
    base = torch.arange(24.0).reshape(4, 6)
    views = {
        "row": base[1],
        "column": base[:, 2],
        "turned": base.t(),
        "again": base,
        "bytes": base.view(torch.uint8)[2],
        "expanded": torch.ones(1).expand(5),
        "apart": torch.arange(3),
    }
    copies = copied(views)
    for name, view in views.items():
        assert copies[name].stride() == view.stride() and torch.equal(copies[name], view), name
        assert copies[name].data_ptr() != view.data_ptr(), name
    copies["again"][1, 2] = -1
    assert copies["row"][2] == -1 and copies["column"][1] == -1 and copies["turned"][2, 1] == -1
    assert base[1, 2] == 8


def test_in_place_operators_on_overlapping_inputs() -> None:
    def run() -> None:
        base = torch.arange(8.0)
        base[:4].add_(base[2:6].clone())
        base.mul_(base)
        base.view(2, 4)[0].sub_(base[4])
        base.addcmul_(base, base)

    assert compared(run).summary.failed == 0


def test_other_dtypes_for_a_reference_that_lacks_halves() -> None:
    half, count = torch.ones(3, dtype=torch.float16), torch.ones(3, dtype=torch.int64)
    wide = {torch.float16: torch.float32}
    args, kwargs = converted(
        ((half, count), {"dtype": torch.float16, "device": torch.device("meta")}),
        torch.device("cpu"),
        wide,
    )
    assert [tensor.dtype for tensor in args] == [torch.float32, torch.int64]
    assert kwargs == {"dtype": torch.float32, "device": torch.device("cpu")}


def test_halves_that_the_reference_lacks_are_promoted(capsys: pytest.CaptureFixture[str]) -> None:
    library = torch.library.Library("my_utils_half_test", "DEF")
    library.define("twice(Tensor x) -> Tensor")
    calls = []

    def twice(x: torch.Tensor) -> torch.Tensor:
        calls.append(x.dtype)
        if len(calls) > 1 and x.dtype is torch.float16:
            raise RuntimeError("\"twice_cpu\" not implemented for 'Half'")
        return x * 2

    library.impl("twice", twice, "CPU")
    compare = compared(
        lambda: torch.ops.my_utils_half_test.twice(torch.ones(3, dtype=torch.float16)),
        namespaces=["my_utils_half_test"],
        target_list=["my_utils_half_test.twice"],
        verbose=True,
    )
    assert calls == [torch.float16, torch.float16, torch.float32]
    assert compare.summary.passed == 1
    text = capsys.readouterr().out
    assert "\"twice_cpu\" not implemented for 'Half'\nConvert to float32 ...\n" in text


# --- operators that must not run twice, or draw ---


COLLECTIVES = """
from my_utils.compare_tool import CompareWithCPU
x = torch.full((4,), float(rank + 1))
with CompareWithCPU(verbose=False, enable_ranks=[0], should_log_to_file=True) as compare:
    dist.all_reduce(x)
    y = torch.ones(2) * rank
    dist.broadcast(y, 1)
assert x.tolist() == [3.0] * 4 and y.tolist() == [1.0, 1.0], (rank, x, y)
assert compare.summary.failed == 0 and compare.errors == 0
assert bool(compare.summary.rows) == (rank == 0)
try:
    with CompareWithCPU(verbose=False, dump_error_data=True, output_dir="dump", atol=0, rtol=0,
                        should_log_to_file=True, reference=lambda f, a, k: f(*a, **k) * 1.5):
        torch.ones(2)
except RuntimeError as error:
    assert "torch.ops.aten.ones" in str(error)
dist.barrier()
print("good", flush=True)
"""


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_collectives_run_once_on_each_rank(tmp_path: Path) -> None:
    results = Ranks(COLLECTIVES, 2, tmp_path).finish(timeout_s=200)
    assert [out for _, out, _ in results] == ["good\n"] * 2, results
    assert (tmp_path / "CompareWithCPU_rank0.log").exists()
    assert not (tmp_path / "CompareWithCPU_rank1.log").exists()
    dumped = {path.name for path in (tmp_path / "dump").glob("*.pkl")}
    kinds = [f"{kind}_rank{rank}" for kind in ("inputs", "outputs") for rank in (0, 1)]
    assert dumped == {f"torch.ops.aten.ones_{kind}.pkl" for kind in kinds}


def test_other_libraries_run_twice_only_where_that_is_asked_for() -> None:
    library = torch.library.Library("my_utils_once_test", "DEF")
    library.define("count(Tensor x) -> Tensor")
    calls = []

    def count(x: torch.Tensor) -> torch.Tensor:
        calls.append(1)
        return x.clone()

    library.impl("count", count, "CPU")
    op = torch.ops.my_utils_once_test.count
    compared(lambda: op(torch.ones(1)))
    assert len(calls) == 1
    compared(lambda: op(torch.ones(1)), namespaces=["my_utils_once_test"])
    assert len(calls) == 3


RANDOM: dict[str, Callable[[], torch.Tensor]] = {
    "dropout": lambda: nn.functional.dropout(torch.ones(50), 0.5),
    "uniform_": lambda: torch.empty(9).uniform_(),
    "normal_": lambda: torch.empty(9).normal_(),
    "rand": lambda: torch.rand(9),
    "randperm": lambda: torch.randperm(9),
    "multinomial": lambda: torch.multinomial(torch.ones(9), 3),
    "bernoulli": lambda: torch.bernoulli(torch.full((9,), 0.5)),
    "half": lambda: torch.empty(9, dtype=torch.float16).normal_(),
    "generator": lambda: torch.rand(9, generator=torch.Generator().manual_seed(3)),
}


@pytest.mark.parametrize("name", RANDOM)
def test_random_operators_are_replayed_and_the_stream_is_left_alone(name: str) -> None:
    torch.manual_seed(7)
    plain, after_plain = RANDOM[name](), torch.get_rng_state()
    torch.manual_seed(7)
    seen = []
    compare = compared(lambda: seen.append(RANDOM[name]()))
    assert torch.equal(seen[0], plain) and torch.equal(torch.get_rng_state(), after_plain)
    assert compare.summary.failed == 0 and compare.summary.passed >= 1


def test_a_wrong_random_replay_is_found() -> None:
    def other_numbers(result: torch.Tensor) -> torch.Tensor:
        return torch.rand(result.shape, generator=torch.Generator().manual_seed(99))

    assert failing(aten.rand, other_numbers, lambda: torch.rand(9)) == ["torch.ops.aten.rand"]


def test_attention_without_dropout_is_compared_though_it_is_tagged_as_random() -> None:
    x = torch.randn(1, 2, 8, 4)
    op = aten._scaled_dot_product_flash_attention_for_cpu
    assert torch.Tag.nondeterministic_seeded in op.default.tags

    def run() -> None:
        nn.functional.scaled_dot_product_attention(x, x, x)

    def spoil(result: Any) -> Any:
        return (one_wrong_element(result[0]), *result[1:])

    assert failing(op, spoil, run) == [f"torch.ops.{op}"]


def test_memory_as_it_is_is_not_compared() -> None:
    def run() -> None:
        torch.empty(1000)
        torch.ones(3).new_empty(1000)
        torch.empty_like(torch.ones(1000))
        torch.ones(3).resize_(5)

    summary = compared(run).summary
    assert summary.failed == 0 and summary.skipped == 4


def test_training_is_the_same_bit_for_bit() -> None:
    def train(tool: Any) -> list[Any]:
        torch.manual_seed(0)
        model = nn.Sequential(
            nn.Linear(6, 6), nn.BatchNorm1d(6), nn.Dropout(0.3), nn.ReLU(inplace=True)
        )
        optimizer = torch.optim.AdamW(model.parameters())
        with tool:
            for _ in range(3):
                optimizer.zero_grad()
                model(torch.randn(5, 6)).square().mean().backward()
                optimizer.step()
        state = [*model.state_dict().values(), *(p.grad for p in model.parameters())]
        return [*tensor_hash(state), tensor_hash(torch.get_rng_state())]

    plain = train(CompareWithCPU(enabled=False))
    tool = CompareWithCPU(verbose=False)
    assert train(tool) == plain
    assert tool.summary.failed == 0 and tool.errors == 0 and tool.summary.passed > 100


# --- results ---


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda result: result[:2], "Tensor shapes differ: torch.Size([2]) vs torch.Size([3])"),
        (lambda result: result.double(), "dtypes differ: torch.float64 vs torch.float32"),
        (first_element(float("nan")), "Element at index (0,) is not close: nan(cpu) vs 2.0(cpu)"),
    ],
)
def test_what_is_wrong_is_said(change: Change, said: str, capsys: Any) -> None:
    assert failing(aten.add, change, lambda: torch.ones(3).add(1)) == ["torch.ops.aten.add"]
    assert said in capsys.readouterr().out


def test_a_list_of_another_length(capsys: pytest.CaptureFixture[str]) -> None:
    def run() -> None:
        torch._foreach_add([torch.ones(2)] * 3, 1.0)

    assert failing(aten._foreach_add, lambda result: result[:2], run)
    assert "Lengths differ: 2 vs 3" in capsys.readouterr().out


def test_plus_infinity_against_minus_infinity_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    def run() -> None:
        torch.ones(3).div(torch.zeros(3))

    assert failing(aten.div, first_element(float("-inf")), run) == ["torch.ops.aten.div"]
    assert "Element at index (0,) is not close: -inf(cpu) vs inf(cpu)" in capsys.readouterr().out


def test_bools_and_numbers_are_compared(capsys: pytest.CaptureFixture[str]) -> None:
    assert failing(aten.gt, one_wrong_element, lambda: torch.ones(3).gt(0)) == ["torch.ops.aten.gt"]
    assert "Element at index (2,) is not close: False(cpu) vs True(cpu)" in capsys.readouterr().out
    same = torch.ones(2)
    assert failing(aten.equal, lambda _: False, lambda: torch.equal(same, same + 0))
    assert "Bool values differ: False vs True" in capsys.readouterr().out
    assert failing(aten._local_scalar_dense, lambda value: value + 1, lambda: same[0].item())
    assert "Float values differ: 2.0 vs 1.0" in capsys.readouterr().out


def test_other_strides_are_a_failure_on_one_kind_of_device() -> None:
    def run() -> None:
        torch.ones(3, 4).add(torch.ones(3, 4))

    assert failing(aten.add, other_strides, run) == ["torch.ops.aten.add"]
    assert failing(aten.add, other_strides, run, check_stride=False) == []


def test_wrong_views_are_found() -> None:
    x = torch.arange(12.0).reshape(3, 4)
    assert compared(lambda: (x.t(), x[1], x.view(4, 3), x.split(2), x.expand(2, 3, 4))).summary
    assert failing(aten.t, lambda view: x.as_strided((4, 3), (1, 3)), lambda: x.t())
    assert failing(aten.select, lambda view: x[2], lambda: x[1]) == ["torch.ops.aten.select"]
    assert failing(aten.view, torch.clone, lambda: x.view(4, 3)) == ["torch.ops.aten.view"]


FLOATS = [torch.float8_e4m3fn, torch.float8_e5m2, torch.bfloat16, torch.float16, torch.float64]
DTYPES = [*FLOATS, torch.complex64, torch.complex128, torch.int8, torch.int64, torch.bool]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_one_wrong_element_of_every_dtype(dtype: torch.dtype) -> None:
    x = torch.ones(40).to(dtype)
    assert compared(lambda: x.clone()).summary.failed == 0
    assert failing(aten.clone, one_wrong_element, lambda: x.clone()) == ["torch.ops.aten.clone"]


def test_nans_and_infinities_are_a_warning(capsys: pytest.CaptureFixture[str]) -> None:
    compare = compared(lambda: torch.zeros(3).log())
    assert compare.summary.failed == 0
    assert (
        "[WARNING] torch.ops.aten.log(forward) gives 0 NaN, 0 +Inf, 3 -Inf"
        in capsys.readouterr().out
    )


def test_sparse_tensors() -> None:
    x = torch.eye(4).to_sparse()
    compare = compared(lambda: torch.sparse.mm(x, torch.ones(4, 2)))
    assert compare.summary.failed == 0


@pytest.mark.parametrize("reference", ["cpu", "float64"])
def test_sparse_tensors_larger_than_memory(reference: str) -> None:
    """As gradients of embeddings."""
    places = torch.tensor([[7, 2**40 - 1, 7]])
    columns = torch.tensor([0, 2**40 - 1])

    def run() -> None:
        rows = torch.sparse_coo_tensor(places, torch.randn(3, 4), (2**40, 4))
        (rows.coalesce() * 2).mul_(0.5)
        (torch.sparse_csr_tensor(torch.tensor([0, 2]), columns, torch.ones(2), (1, 2**40)) * 2)

    compare = compared(run, reference=reference)
    passed = {row.op: row.passed for row in compare.summary.rows}
    assert compare.summary.failed == 0 and passed["torch.ops.aten.mul"] == 2


def test_wrong_values_and_places_of_sparse_tensors() -> None:
    x = torch.eye(4).to_sparse()

    def values(result: torch.Tensor) -> torch.Tensor:
        return torch.sparse_coo_tensor(result._indices(), result._values() + 1, result.shape)

    def places(result: torch.Tensor) -> torch.Tensor:
        return torch.sparse_coo_tensor(result._indices().flip(1), result._values(), result.shape)

    def moved(result: torch.Tensor) -> torch.Tensor:
        indices = torch.stack([result._indices()[0], result._indices()[1].flip(0)])
        return torch.sparse_coo_tensor(indices, result._values(), result.shape)

    assert failing(aten.mul, values, lambda: x * 2) == ["torch.ops.aten.mul"]
    assert failing(aten.mul, moved, lambda: x * 2) == ["torch.ops.aten.mul"]
    assert failing(aten.mul, places, lambda: x * 2) == [], "the same places in another order"


def test_only_some_elements_of_large_tensors() -> None:
    x = torch.ones(1000)
    given: Any = {"max_elements": 10}
    assert failing(aten.add, lambda result: result + 1, lambda: x + 1, **given)
    assert failing(aten.add, first_element(9.0), lambda: x + 1, **given)
    assert not failing(aten.add, one_wrong_element, lambda: x + 1, **given)


def test_errors_of_operators_come_through_unchanged() -> None:
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        compared(lambda: torch.mm(torch.ones(2, 3), torch.ones(2, 3)))


def test_tensors_without_values() -> None:
    compare = compared(lambda: torch.ones(3, device="meta").log().add_(1).view(3, 1))
    assert compare.summary.failed == 0 and compare.summary.skipped == 3


def test_an_error_in_the_tool_does_not_reach_the_training(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*args: Any) -> Any:
        raise ValueError("of the tool")

    monkeypatch.setattr("my_utils.profilers.operators.reference.Reference.run", broken)
    compare = CompareWithCPU(verbose=False)
    with pytest.raises(CompareError, match="could test nothing"), compare:
        assert torch.ones(2).add(1).tolist() == [2, 2]
    assert compare.errors == 2


class TestNothingTested:
    """Silence must not look like success."""

    def test_a_block_in_which_nothing_could_be_tested_ends_as_an_error(self) -> None:
        def broken(func: Any, args: Any, kwargs: Any) -> Any:
            raise RuntimeError("no reference today")

        with (
            pytest.raises(CompareError, match=r"could test nothing: 3 calls .* no reference today"),
            CompareWithCPU(verbose=False, reference=broken),
        ):
            torch.ones(3).exp().log()

    def test_one_that_was_tested_is_enough(self) -> None:
        def half(func: Any, args: Any, kwargs: Any) -> Any:
            if func is torch.ops.aten.log.default:
                raise RuntimeError("no logarithm")
            return func(*args, **kwargs)

        with CompareWithCPU(verbose=False, reference=half) as compare:
            torch.ones(3).exp().log()
        assert (compare.summary.passed, compare.summary.skipped) == (2, 1)

    def test_the_exception_of_the_block_goes_first(self) -> None:
        def broken(func: Any, args: Any, kwargs: Any) -> Any:
            raise RuntimeError("no reference today")

        with pytest.raises(KeyError), CompareWithCPU(verbose=False, reference=broken):
            torch.ones(3).exp()
            raise KeyError("mine")

    @pytest.mark.parametrize("argument", ["target_list", "target_op", "white_list"])
    @pytest.mark.parametrize(
        ("name", "words"),
        [
            ("aten.adddmm", r"no operator torch.ops.aten.adddmm; is torch.ops.aten.addmm meant\?"),
            ("torch.ops.aten.add.Tenser", "has no overload 'Tenser'"),
        ],
    )
    def test_a_misspelt_operator(self, argument: str, name: str, words: str) -> None:
        with pytest.raises(ValueError, match=f"{argument}.*{words}"):
            CompareWithCPU(**{argument: [name]})  # type: ignore[arg-type]

    def test_a_target_that_did_not_run(self, capsys: pytest.CaptureFixture[str]) -> None:
        with CompareWithCPU(target_op=["my_ops.twice", "aten.exp"]) as compare:
            torch.ones(3).exp()
        assert compare.summary.passed == 1
        said = capsys.readouterr().out
        assert "[WARNING] torch.ops.my_ops.twice did not run in the block" in said
        assert "torch.ops.aten.exp did not run" not in said

    def test_no_target_ran(self) -> None:
        said = pytest.raises(CompareError, match=r"nothing: torch.ops.aten.exp did not run")
        with said, CompareWithCPU(verbose=False, target_list=["exp"]):
            torch.ones(3).log()

    def test_a_target_that_torch_divides(self) -> None:
        said = pytest.raises(CompareError, match="linear: torch runs others in its place")
        with said, CompareWithCPU(verbose=False, target_list=["linear"]):
            torch.nn.functional.linear(torch.ones(2, 3), torch.ones(4, 3))

    def test_a_block_of_operators_that_are_left_out(self) -> None:
        said = pytest.raises(
            CompareError, match=r"nothing: torch.ops.aten.empty returns uninitialized memory"
        )
        with said, CompareWithCPU(verbose=False):
            torch.empty(3)

    @pytest.mark.parametrize("name", ["c10d.allreduce_", "aten.empty", "higher_order.cond"])
    def test_a_target_that_is_never_tested(self, name: str) -> None:
        with pytest.raises(ValueError, match=f"target_op: torch.ops.{name} cannot be tested: it"):
            CompareWithCPU(target_op=[name])

    def test_a_target_of_another_library_is_compared(self) -> None:
        results = iter((1.0, 2.0))
        with torch.library._scoped_library("my_utils_target_test", "DEF") as library:
            library.define("drift(Tensor x) -> Tensor")
            library.impl("drift", lambda x: x + next(results), "CPU")
            drift = torch.ops.my_utils_target_test.drift
            with CompareWithCPU(verbose=False, target_op=[drift]) as compare:
                drift(torch.ones(3))
        assert (compare.summary.passed, compare.summary.failed) == (0, 1)


@pytest.mark.parametrize("reference", ["cpu", "float64"])
class TestOfWhatIsCopied:
    """What the reference is given is what the operator was given."""

    def test_conjugated_and_negated_views(self, reference: str, tmp_path: Path) -> None:
        x = torch.randn(5, 4, dtype=torch.complex64)
        conjugated, negated = x.mH, x.conj().imag
        assert conjugated.is_conj() and negated.is_neg()
        settings: dict[str, Any] = {"dump_error_data": True, "output_dir": tmp_path}
        with CompareWithCPU(verbose=False, reference=reference, **settings) as compare:
            products = x @ conjugated, conjugated @ x, negated @ x.real.T, x[:, ::2] @ x.mH[::2]
            torch.fft.hfft(x)
            x.clone().addmm_(x @ conjugated, conjugated.mH)
        assert compare.summary.failed == 0 and compare.errors == 0
        assert torch.equal(products[0], x @ torch.conj_physical(x).T.contiguous().clone())

    def test_the_dump_holds_the_conjugated_values(self, reference: str, tmp_path: Path) -> None:
        x = torch.randn(3, 3, dtype=torch.complex64)
        settings: dict[str, Any] = {"dump_error_data": True, "output_dir": tmp_path}
        tool = CompareWithCPU(verbose=False, reference=reference, **settings)
        with pytest.raises(CompareError), Fault(aten.mm, lambda result: result + 1), tool:
            x.mm(x.mH)
        file = tmp_path / "torch.ops.aten.mm_inputs.pkl"
        correct, args, _, _ = compare_for_single_op(file, aten.mm)
        assert correct and torch.equal(args[1], torch.conj_physical(x.T))

    def test_kernels_that_ask_whether_gradients_are_wanted(self, reference: str) -> None:
        table = torch.randn(6, 3, requires_grad=True)
        with CompareWithCPU(verbose=False, reference=reference) as compare:
            sparse = torch.eye(3).to_sparse_csr().requires_grad_()
            torch.sparse.mm(sparse, torch.randn(3, 2, requires_grad=True), "amax").sum().backward()
            rows = torch.nn.functional.embedding_bag(torch.tensor([[1, 2]]), table)
            rows.sum().backward()
        assert compare.summary.failed == 0 and compare.errors == 0


class TestOfWhatHasNoOtherAnswer:
    """With `reference="float64"`: results that no other dtype gives, or that are one of many."""

    def test_vectors_without_a_sign(self) -> None:
        torch.manual_seed(0)
        with CompareWithCPU(verbose=False, reference="float64") as compare:
            for _ in range(10):
                matrix = torch.randn(2, 5, 5)
                torch.linalg.eigh(matrix @ matrix.mT)
                torch.linalg.svd(matrix)
                torch.linalg.eig(torch.randn(3, 3))
        assert compare.summary.failed == 0 and compare.summary.passed

    def test_eigenvalues_are_compared(self) -> None:
        spoilt = Fault(aten._linalg_eigh, lambda result: (result[0] + 1, result[1]))
        with spoilt, CompareWithCPU(verbose=False, reference="float64") as compare:
            torch.linalg.eigh(torch.eye(3))
        assert compare.summary.failed == 1

    def test_scratch(self) -> None:
        scores = torch.randn(50, 3, 8).log_softmax(2)
        targets = torch.randint(1, 8, (3, 10))
        with CompareWithCPU(verbose=False, reference="float64") as compare:
            for length in (5, 20, 50):
                lengths = torch.tensor([length, 40, 30])
                torch.nn.functional.ctc_loss(scores, targets, lengths, torch.tensor([3, 10, 7]))
            torch.nn.functional.embedding_bag(torch.tensor([[1, 2]]), torch.randn(6, 3))
        assert compare.summary.failed == 0

    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
    def test_what_is_defined_by_the_dtype(self, dtype: torch.dtype) -> None:
        x = torch.tensor([1.0, torch.inf, -torch.inf, torch.nan], dtype=dtype)
        with CompareWithCPU(verbose=False, reference="float64") as compare:
            x.nan_to_num()
            torch.nextafter(torch.ones(2, dtype=dtype), torch.zeros(2, dtype=dtype))
        assert (compare.summary.passed, compare.summary.failed) == (4, 0)


class TestOfSums:
    """With `reference="float64"`: the terms of a sum cancel, and are large or many."""

    @pytest.mark.parametrize("length", [100, 10_000, 100_000])
    @pytest.mark.parametrize("scale", [1.0, 1e4])
    def test_what_cancels(self, length: int, scale: float) -> None:
        torch.manual_seed(length)
        rows = torch.randn(4, length) * scale
        there = torch.cat([rows, rows.flip(0)], 1)
        back = torch.cat([torch.randn(length, 3), torch.zeros(length, 3)])
        back[length:] = -back[:length].roll(1, 0)
        with CompareWithCPU(verbose=False, reference="float64") as compare:
            there.mm(back)
            torch.addmm(torch.ones(3), there, back, beta=-2, alpha=-3)
            (there.unsqueeze(1) * torch.randn(1, 5, 1)).bfloat16().sum(2)
            torch.nn.functional.conv1d(there[None], torch.randn(2, 4, 7), padding=3)
        assert compare.summary.failed == 0 and compare.errors == 0

    @pytest.mark.parametrize("length", [3, 100, 10_000])
    def test_a_term_that_is_missing(self, length: int) -> None:
        torch.manual_seed(length)
        left, right = torch.randn(4, length), torch.randn(length, 3)
        without = (left[:, 1:] @ right[1:])[0, 0]

        def forgets(result: torch.Tensor) -> torch.Tensor:
            result[0, 0] = without
            return result

        assert abs(left[0, 0] * right[0, 0]) > 0.05
        with Fault(aten.mm, forgets), CompareWithCPU(verbose=False, reference="float64") as compare:
            left.mm(right)
        assert compare.summary.failed == 1

    def test_a_given_tolerance_stands(self) -> None:
        left, right = torch.tensor([[1e4, 1.0, -1e4]]), torch.tensor([[1.0], [1e-4], [1.0]])
        settings: dict[str, Any] = {"verbose": False, "reference": "float64"}
        with CompareWithCPU(**settings) as own, CompareWithCPU(atol=1e-5, **settings) as given:
            left.mm(right)
        assert (own.summary.failed, given.summary.failed) == (0, 1)

    def test_nothing_is_close_to_nan(self) -> None:
        spoilt = Fault(aten.mm, lambda result: result.fill_(torch.nan))
        with spoilt, CompareWithCPU(verbose=False, reference="float64") as compare:
            torch.full((2, 2), 1e38).mm(torch.ones(2, 2))
        assert compare.summary.failed == 1
