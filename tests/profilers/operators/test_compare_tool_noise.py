"""What a comparison must not report of sound code, and what it must say of itself."""

from __future__ import annotations

import subprocess
import sys
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
    NanInfError,
    NanInfTracker,
    compare_for_single_op,
)

from ...support.op_faults import Fault, doubled


def backward_of(output: Any) -> None:
    first = output[0] if isinstance(output, tuple) else output
    first.float().square().mean().backward()


def compared(run: Callable[[], Any], **settings: Any) -> tuple[int, int, set[str]]:
    """Failures, errors, and the operators that failed."""
    with CompareWithCPU(verbose=False, **settings) as compare:
        run()
    rows = {row.op for row in compare.summary.rows if row.failed}
    assert compare.summary.passed + compare.summary.failed > 0
    return compare.summary.failed, compare.errors, rows


SOUND = (0, 0, set[str]())


@pytest.mark.parametrize("check_stride", [None, True])
def test_in_place_operators_on_views_have_the_strides_of_the_views(
    check_stride: bool | None,
) -> None:
    torch.manual_seed(0)
    model, x = nn.GRU(8, 16, batch_first=True), torch.randn(4, 6, 8)
    settings = {"reference": "float64", "check_stride": check_stride}
    assert compared(lambda: backward_of(model(x)), **settings) == SOUND


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("kind", ["attention", "norm"])
def test_rounding_within_an_operator_is_that_of_its_dtype(kind: str, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    if kind == "norm":
        norm, x = nn.LayerNorm(64).to(dtype), (torch.randn(64, 64) * 5 + 3).to(dtype)
        assert compared(lambda: backward_of(norm(x)), reference="float64") == SOUND
        return
    q = torch.randn(2, 4, 64, 16).to(dtype).requires_grad_()
    attention = torch.nn.functional.scaled_dot_product_attention
    assert compared(lambda: backward_of(attention(q, q, q)), reference="float64") == SOUND


def test_a_wrong_result_is_seen_beside_the_rounding() -> None:
    x = torch.randn(64, 64).bfloat16()
    with Fault(torch.ops.aten.exp, lambda result: result * 1.05):
        found = compared(x.exp, reference="float64")
    assert found == (1, 0, {"torch.ops.aten.exp"})


def test_the_ends_of_a_dtype() -> None:
    """Beyond the largest number is infinity, and the smallest ones have steps of one size."""
    large, small = torch.tensor([300.0, -300.0, 2.0]).half(), torch.tensor([5e-4, 3.0]).half()
    for run in (lambda: large * large.abs(), lambda: small[:1] * 1e-4, lambda: small[:1] * 1e-7):
        assert compared(run, reference="float64") == SOUND
    with Fault(torch.ops.aten.mul, lambda result: result * torch.inf):
        found = compared(lambda: small[1:] * small[1:], reference="float64")
    assert found == (1, 0, {"torch.ops.aten.mul"})


def test_the_workspace_of_an_lstm_is_not_compared() -> None:
    torch.manual_seed(0)
    model, x = nn.LSTM(8, 16, 2, batch_first=True), torch.randn(4, 6, 8)
    for _ in range(3):
        assert compared(lambda: backward_of(model(x))) == SOUND


def quantized() -> tuple[torch.Tensor, torch.Tensor]:
    whole = torch.quantize_per_tensor(torch.randn(4, 4), 0.1, 2, torch.qint8)
    scales, zeros = torch.full((4,), 0.1), torch.zeros(4, dtype=torch.long)
    return whole, torch.quantize_per_channel(torch.randn(4, 4), scales, zeros, 0, torch.qint8)


def test_quantized_tensors_are_compared() -> None:
    def run() -> None:
        whole, rows = quantized()
        torch.cat([whole.relu(), whole.t()]).dequantize()
        rows.dequantize()

    assert compared(run) == SOUND


def test_a_wrong_quantized_result() -> None:
    def other(func: Any, args: Any, kwargs: Any) -> Any:
        result = func(*args, **kwargs)
        return result if not result.is_quantized else torch.quantize_per_tensor(
            result.dequantize() + 0.1, 0.1, 2, torch.qint8
        )  # fmt: skip

    whole, _ = quantized()
    failed, errors, _ = compared(lambda: (whole.relu(), whole.dequantize()), reference=other)
    assert (failed, errors) == (1, 0)


@pytest.mark.parametrize("which", [0, 1])
def test_a_dump_of_quantized_tensors_runs_again(tmp_path: Path, which: int) -> None:
    def wrong(func: Any, args: Any, kwargs: Any) -> Any:
        return func(*args, **kwargs) + 1

    tensor = quantized()[which]
    with (
        pytest.raises(CompareError),
        CompareWithCPU(verbose=False, dump_error_data=True, output_dir=tmp_path, reference=wrong),
    ):
        tensor.dequantize()
    op = torch.ops.aten.dequantize
    file = tmp_path / "torch.ops.aten.dequantize_inputs.pkl"
    correct, args, _, _ = compare_for_single_op(file, op)
    assert correct
    assert torch.equal(args[0].int_repr(), tensor.int_repr())


def test_a_comparison_of_a_device_with_itself_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    with CompareWithCPU(verbose=False):
        torch.ones(3).exp()
    said = capsys.readouterr().out
    assert "they are deterministic, but not necessarily right" in said
    assert "2 calls were compared with themselves, run again" in said
    with CompareWithCPU(verbose=False, reference="float64"):
        torch.ones(3).exp()
    assert "deterministic" not in capsys.readouterr().out


def run_again(error: CompareError | NanInfError) -> subprocess.CompletedProcess[str]:
    script = error.files[-1]
    assert f"python {script} runs it again" in str(error)
    return subprocess.run([sys.executable, script], capture_output=True, text=True, check=False)


@pytest.mark.slow
@pytest.mark.parametrize("reference", [doubled, lambda func, args, kwargs: args[0] * 7])
def test_the_script_beside_a_dump_runs_as_it_is(tmp_path: Path, reference: Any) -> None:
    settings = {"dump_error_data": True, "output_dir": tmp_path, "target_list": ["aten.exp"]}
    compare = CompareWithCPU(verbose=False, reference=reference, **settings)  # type: ignore[arg-type]
    with pytest.raises(CompareError) as caught, compare:
        torch.ones(3).exp()
    done = run_again(caught.value)
    is_importable = reference is doubled
    assert (done.returncode, "found again" in done.stdout) == (is_importable, is_importable)
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_the_script_beside_a_nan_runs_as_it_is(tmp_path: Path) -> None:
    tracker = NanInfTracker(dump_error_data=True, output_dir=tmp_path)
    with pytest.raises(NanInfError) as caught, tracker:
        torch.zeros(3).log().sub(torch.zeros(3).log())
    done = run_again(caught.value)
    assert (done.returncode, "found again" in done.stdout) == (1, True)
    assert "Traceback" not in done.stderr
