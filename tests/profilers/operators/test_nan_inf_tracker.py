"""NanInfTracker: which operator made the first NaN, and where it went from there."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="torch is not installed")

import torch
from torch import nn

from my_utils.compare_tool import (
    CompareWithCPU,
    NanInfError,
    NanInfTracker,
    nan_inf_track_for_single_op,
    open_module_tracker,
)

from ...support.op_faults import Fault, first_element
from ...support.ranks import run_ranks

aten = torch.ops.aten


class Roots(nn.Module):
    """Its gradient is not finite where x is 0."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.sqrt()


def tracked(run: Any, **given: Any) -> NanInfTracker:
    with NanInfTracker(**given) as tracker:
        run()
    assert tracker.errors == 0
    return tracker


def roles(tracker: NanInfTracker) -> list[tuple[str, str]]:
    return [(found.op.removeprefix("torch.ops.aten."), found.role) for found in tracker.findings]


def test_the_producer_and_those_that_pass_it_on(capsys: pytest.CaptureFixture[str]) -> None:
    x = torch.tensor([1.0, -1.0])
    tracker = tracked(lambda: x.log().add(1).view(2, 1).sum())
    assert roles(tracker) == [("log", "producer"), ("add", "propagator"), ("sum", "propagator")]
    assert tracker.first is tracker.findings[0] and tracker.first.nan == 1
    text = capsys.readouterr().out
    assert re.search(r"\[WARNING\] torch.ops.aten.log\(forward\) fails to pass NanInfTracker", text)
    assert "1 NaN, 0 +Inf, 0 -Inf of 2 elements; its inputs are finite" in text
    assert "0: Tensor <shape=torch.Size([2]), dtype=torch.float32, device=cpu, size=2, >, " in text
    assert "[WARNING] torch.ops.aten.add(forward) passes on what came in" in text
    assert "first: torch.ops.aten.log(forward) in step 0 (producer)" in text


def test_in_place_operators_are_judged_by_what_they_were_given() -> None:
    x = torch.tensor([1.0, -1.0])
    tracker = tracked(lambda: x.log_().add_(1).mul_(2))
    assert roles(tracker) == [("log_", "producer"), ("add_", "propagator"), ("mul_", "propagator")]


def test_verbose_has_a_line_for_each_operator(capsys: pytest.CaptureFixture[str]) -> None:
    tracked(lambda: torch.ones(2).add(1).mul_(2), verbose=True)
    text = capsys.readouterr().out
    for name in ("add", "mul_"):
        assert f"torch.ops.aten.{name}(forward) succeeds to pass NanInfTracker test\n" in text


def test_old_values_of_an_out_argument_do_not_count() -> None:
    out = torch.full((2,), math.nan)
    zeros = torch.zeros(2)
    assert roles(tracked(lambda: torch.div(zeros, zeros, out=out))) == [("div", "producer")]


def test_lists_of_foreach_operators() -> None:
    values = [torch.ones(2), -torch.ones(2)]
    assert roles(tracked(lambda: torch._foreach_log_(values))) == [("_foreach_log_", "producer")]


def test_a_backward_operator_is_named_with_its_module() -> None:
    linear = nn.Linear(2, 2)
    model = nn.Sequential(linear, Roots())
    nn.init.zeros_(linear.weight)
    nn.init.zeros_(linear.bias)

    def run() -> None:
        (model(torch.ones(1, 2)) * 0).sum().backward()

    with open_module_tracker(model):
        first = tracked(run).first
    assert first is not None and first.module == "1" and first.role == "producer"
    assert first.title == "Sequential/Roots[1]/torch.ops.aten.div(backward)"


def test_infinities_that_are_meant_are_no_finding() -> None:
    def run() -> None:
        mask = torch.full((4, 4), float("-inf")).triu(1)
        scores = torch.randn(4, 4) + mask
        torch.softmax(scores, -1)
        torch.randn(4, 4).masked_fill(torch.ones(4, 4).bool().triu(1), float("-inf")).exp()
        torch.where(torch.ones(2).bool(), torch.zeros(2), float("inf"))
        torch.tensor([float("inf")]) * 2

    assert tracked(run).findings == []


def ctc(scores: torch.Tensor) -> None:
    lengths = torch.tensor([10, 10])
    targets = torch.tensor([[1, 2], [2, 3]])
    loss = nn.functional.ctc_loss(scores, targets, lengths, torch.tensor([2, 2]))
    loss.backward()


@pytest.mark.parametrize("dump", [True, False])
def test_scratch_of_a_kernel_is_no_finding(
    tmp_path: Path, dump: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    """A healthy CTC loss keeps -Inf for its backward."""
    scores = torch.randn(10, 2, 5).log_softmax(2).requires_grad_()
    given: dict[str, Any] = {"dump_error_data": dump, "output_dir": tmp_path}
    assert tracked(lambda: ctc(scores), **given).findings == []
    with CompareWithCPU(verbose=False):
        ctc(scores)
    assert "[WARNING] torch.ops.aten._ctc_loss" not in capsys.readouterr().out


def test_scratch_does_not_explain_an_infinity() -> None:
    """Scores that are no logarithms of probabilities give infinite gradients."""
    scores = torch.full((10, 2, 5), 100.0, requires_grad=True)
    assert roles(tracked(lambda: ctc(scores))) == [("_ctc_loss_backward", "producer")]


def test_an_infinity_from_finite_inputs_is_one() -> None:
    tracker = tracked(lambda: torch.full((3,), 1e38).mul(10).add(1))
    assert roles(tracker) == [("mul", "producer")]
    assert tracker.findings[0].pos_inf == 3


def test_a_nan_from_infinities_has_a_producer() -> None:
    x = torch.tensor([float("inf")])
    assert roles(tracked(lambda: x - x)) == [("sub", "producer")]


@pytest.mark.parametrize(
    "dtype", [torch.float16, torch.bfloat16, torch.float64, torch.complex64, torch.float8_e5m2]
)
def test_every_floating_dtype(dtype: torch.dtype) -> None:
    x = torch.ones(5).to(dtype)
    with Fault(aten.clone, first_element(math.nan)):
        assert roles(tracked(lambda: x.clone())) == [("clone", "producer")]


def test_other_libraries_are_looked_at_too() -> None:
    library = torch.library.Library("my_utils_nan_test", "DEF")
    library.define("spoil(Tensor x) -> Tensor")
    library.impl("spoil", lambda x: x * math.nan, "CPU")
    tracker = tracked(lambda: torch.ops.my_utils_nan_test.spoil(torch.ones(2)))
    assert tracker.first is not None and tracker.first.op == "torch.ops.my_utils_nan_test.spoil"


def test_what_is_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    x = torch.tensor([-1.0])
    assert tracked(lambda: x.log().isnan(), white_list=["aten.log"]).findings == []
    assert roles(tracked(lambda: x.log().sqrt(), target_op=["sqrt"])) == [("sqrt", "propagator")]
    assert tracked(lambda: x.log(), enabled=False).findings == []
    assert tracked(lambda: x.log(), start_step=1).findings == []
    torch.empty(1000)


def test_many_that_pass_it_on_are_counted(capsys: pytest.CaptureFixture[str]) -> None:
    operators: list[Any] = [
        torch.abs,
        torch.neg,
        torch.exp,
        torch.sin,
        torch.cos,
        torch.tanh,
        torch.floor,
    ]
    operators += [torch.ceil, torch.sigmoid, torch.erf, torch.round, torch.trunc]
    operators += [torch.sinh, torch.cosh, torch.atan, torch.square, torch.expm1, torch.exp2]
    operators += [torch.erfc, torch.relu, torch.frac, torch.rad2deg, torch.deg2rad]

    def run() -> None:
        x = torch.tensor([-1.0]).log()
        for operator in operators:
            operator(x)

    assert len(tracked(run).findings) == len(operators) + 1
    text = capsys.readouterr().out
    assert text.count("passes on what came in") == 20
    assert f"[WARNING] {len(operators) - 20} more passed on values of their inputs" in text


def test_a_finding_is_reported_once_a_step(capsys: pytest.CaptureFixture[str]) -> None:
    tracker = NanInfTracker()
    with tracker:
        for calls in (5, 1, 3):
            for _ in range(calls):
                torch.tensor([-1.0]).log() + 1
            tracker.step()
    assert len(tracker.findings) == 18
    text = capsys.readouterr().out
    assert text.count("log(forward) fails to pass NanInfTracker test") == 3
    assert text.count("add(forward) passes on what came in") == 3
    assert "[WARNING] torch.ops.aten.log(forward): 4 more in step 0" in text
    assert "[WARNING] torch.ops.aten.add(forward): 2 more in step 2" in text
    assert "in step 1" not in text


ARRIVES = """
from my_utils import GlobalLogger
from my_utils.compare_tool import CompareWithCPU, NanInfTracker
GlobalLogger().setup("logs", rank=rank, world_size=world, console=False)
grad = torch.ones(4)
with NanInfTracker(should_log_to_file=True, verbose=False) as tracker:
    if rank == 1:
        grad = (grad - 2).log()
    dist.all_reduce(grad)
    weight = torch.ones(4)
    weight.add_(grad, alpha=-0.1)
    (grad / world).sum()
with CompareWithCPU(should_log_to_file=True):
    torch.ones(2) + 1
print(tracker.first.role, tracker.first.op)
dist.destroy_process_group()
"""


@pytest.mark.slow
def test_a_nan_of_another_rank_arrives_by_a_collective(tmp_path: Path) -> None:
    """Over gloo. The logs are in the log directory, and each of their lines says its rank."""
    first, second = run_ranks(ARRIVES, 2, tmp_path)
    assert first.split()[0] == "propagator"
    assert second.split()[0] == "producer"
    texts = [(tmp_path / f"logs/NanInfTracker_rank{r}.log").read_text() for r in range(2)]
    arrived = "passes on what arrived by all_reduce: look at the other ranks: 4 NaN"
    assert arrived in texts[0]
    assert texts[0].rstrip().endswith("rank 0: it arrived by all_reduce: look at the other ranks")
    assert "arrived" not in texts[1], "this rank made it itself"
    compared = (tmp_path / "logs/CompareWithCPU_rank0.log").read_text()
    for rank, text in [*enumerate(texts), (0, compared)]:
        assert all(line.startswith(f"rank {rank}: ") for line in text.splitlines() if line)


def test_the_first_producer_is_dumped_raised_and_run_again(tmp_path: Path) -> None:
    tracker = NanInfTracker(dump_error_data=True, output_dir=tmp_path)
    with pytest.raises(NanInfError, match=r"aten\.log_"), tracker:
        torch.tensor([1.0, -1.0]).add(0).log_()
    path = tmp_path / "torch.ops.aten.log__inputs.pkl"
    correct, args, _, out = nan_inf_track_for_single_op(path, aten.log_)
    assert not correct and out is args[0] and math.isnan(out[1])
    correct, _, _, out = nan_inf_track_for_single_op(path, aten.exp)
    assert correct and torch.isfinite(out).all()


def test_a_clean_run_has_no_findings(capsys: pytest.CaptureFixture[str]) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(), nn.LayerNorm(4), nn.GELU())
    optimizer = torch.optim.AdamW(model.parameters())
    with NanInfTracker(verbose=False) as tracker:
        for _ in range(3):
            model(torch.randn(2, 4)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            tracker.step()
    assert tracker.findings == [] and tracker.first is None and tracker.errors == 0
    text = capsys.readouterr().out
    assert "[WARNING]" not in text and "no NaN and no unexpected Inf" in text


def test_nans_that_are_read_once_a_step(capsys: pytest.CaptureFixture[str]) -> None:
    with NanInfTracker(sync="step") as tracker:
        x = torch.tensor([1.0, -1.0])
        tracker.step()
        x.log().add_(1).mul(2)
        torch._foreach_add([x, x.double()], 1.0)
        assert tracker.findings == []
        tracker.step()
        assert roles(tracker) == [
            ("log", "producer"),
            ("add_", "propagator"),
            ("mul", "propagator"),
        ]
        x.sqrt()
    assert tracker.findings[-1].step == 2 and len(tracker.findings) == 4
    assert "first: torch.ops.aten.log(forward) in step 1 (producer)" in capsys.readouterr().out
    with pytest.raises(ValueError, match="sync"):
        NanInfTracker(sync="never")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="sync"):
        NanInfTracker(sync="step", dump_error_data=True)
    with pytest.raises(TypeError, match="dump_error_data must be a bool, not 'no'"):
        NanInfTracker(dump_error_data="no")  # type: ignore[arg-type]


@pytest.mark.parametrize("sync", ["op", "step"])
def test_nans_in_tensors_of_any_kind(sync: Any) -> None:
    nan = torch.tensor([[math.nan, 1.0]])
    with NanInfTracker(sync=sync) as tracker:
        torch.empty(3, device="meta").add(1)
        nan.to_sparse().mul(2)
        nan.to_sparse_csr().mul(2)
        torch.nested.nested_tensor([nan, nan], layout=torch.jagged).mul(2)
    assert tracker.errors == 0
    assert {"mul", "_to_sparse"} <= {name for name, _ in roles(tracker)}


@pytest.mark.parametrize("sync", ["op", "step"])
def test_sparse_tensors_larger_than_memory(sync: Any) -> None:
    """As gradients of embeddings: only what is stored can be looked at."""
    places = torch.tensor([[7, 2**40 - 1, 7]])
    columns = torch.tensor([0, 2**40 - 1])
    with NanInfTracker(sync=sync) as tracker:
        rows = torch.sparse_coo_tensor(places, torch.ones(3, 4), (2**40, 4))
        (rows * 2).coalesce()
        row = torch.sparse_csr_tensor(torch.tensor([0, 2]), columns, torch.ones(2), (1, 2**40))
        (row * 2).mul(3)
        assert tracker.findings == []
        rows * math.nan
        row * math.nan
    assert tracker.errors == 0
    assert {(found.op, found.nan) for found in tracker.findings} == {
        ("torch.ops.aten.mul", 12),
        ("torch.ops.aten.mul", 2),
    }


def test_tensors_without_values_and_of_other_layouts() -> None:
    def run() -> None:
        torch.ones(3, device="meta").log().add_(1)
        torch.eye(3).to_sparse().mul(2)
        torch.ones(2, dtype=torch.int64).add(1)

    assert tracked(run).findings == []
