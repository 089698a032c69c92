"""CompareWithCPU on torch's own samples: what is right agrees, and what is spoilt does not."""

from __future__ import annotations

import itertools
import time
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

import pytest

pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("expecttest", reason="torch's databases need expecttest")

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from my_utils.compare_tool import CompareWithCPU
from my_utils.profilers.operators.inputs import tensors_in

op_db = pytest.importorskip("torch.testing._internal.common_methods_invocations").op_db

pytestmark = pytest.mark.slow

PARTS = 12
SEEDS = (0, 1, 2)
SECONDS = 1.5  # of an operator, a dtype and a seed; the samples after that are left out
DTYPES = (
    *(torch.float64, torch.float32, torch.bfloat16, torch.float16),
    *(torch.complex64, torch.int64),
)
NOT_RUN = ("chalf", "linspace")  # torch computes little in complex32; its own sample raises
# Which torch computes with Inf or NaN on the way, where their results are ordinary numbers.
OVERFLOW = {
    "linalg_matrix_exp": (torch.float16, torch.bfloat16),
    "soft_margin_loss": (torch.float16,),
    "soft_margin_loss_backward": (torch.float16,),
}
# Which failed once, by a reason each: edges, poles, cancelling, roundings within, ties.
ONCE = {
    "div": "quotients next to an integer", "fmod": "the same", "histc": "edges of bins",
    "nn.functional.grid_sample": "positions", "grid_sampler_3d": "positions",
    "native_layer_norm": "one element is its mean", "logspace": "exponents", "polygamma": "poles",
    "pow": "large powers", "sinc": "large sines", "cdist": "roots next to zero",
    "nn.functional.ctc_loss": "large logarithms", "float_power": "a narrower result",
    "prod": "many products", "nn.functional.nll_loss": "sums in 16 bits",
}  # fmt: skip
SPOILT_BY = {  # of the largest element
    torch.float32: 0.01,
    torch.complex64: 0.01,
    torch.float16: 0.03,
    torch.bfloat16: 0.1,
}
NOT_SPOILT = ("empty", "rand", "_linalg_eigh", "linalg_eig", "_linalg_svd", "detach", "isclose")
FOUND_LEAST = 0.97  # the others are next to an edge or a pole


class Spoiler(TorchDispatchMode):
    """Makes one element of the first result wrong."""

    def __init__(self, share: float) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.share = share
        self.name = ""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        fresh = func.namespace == "aten" and not (func.is_view or func._schema.is_mutable)
        if self.name or not fresh or any(part in func._opname for part in NOT_SPOILT):
            return result
        first, *rest = result if isinstance(result, tuple) else (result,)
        wrong = self._spoilt(first) if isinstance(first, Tensor) else None
        if wrong is None:
            return result
        self.name = func._opname
        return (wrong, *rest) if isinstance(result, tuple) else wrong

    def _spoilt(self, tensor: Tensor) -> Tensor | None:
        is_number = tensor.is_floating_point() or tensor.is_complex()
        if not is_number or not tensor.numel() or tensor.layout is not torch.strided:
            return None
        size = torch.where(torch.isfinite(tensor), tensor, 0).abs().max()
        wrong = tensor.clone(memory_format=torch.contiguous_format)
        middle = wrong.view(-1)[wrong.numel() // 2 :][:1]
        if size < 1e-4 or not torch.isfinite(middle).all():
            return None
        middle += self.share * size
        return wrong


def samples(op: Any, dtype: torch.dtype, seed: int, seconds: float) -> Iterator[Any]:
    grad = op.supports_autograd and dtype in op.supported_backward_dtypes("cpu")
    end = time.monotonic() + seconds
    torch.manual_seed(seed)
    for sample in op.sample_inputs("cpu", dtype, requires_grad=grad):
        yield sample
        if time.monotonic() > end:
            return


def compared(op: Any, sample: Any, reference: str) -> CompareWithCPU:
    """Forward, and backward where there is one."""
    tool = CompareWithCPU(verbose=False, reference=reference)
    tool._end_untested = lambda text: None  # type: ignore[method-assign]
    torch.manual_seed(7)
    with warnings.catch_warnings(), tool:
        warnings.simplefilter("ignore")
        result = op(sample.input, *sample.args, **sample.kwargs)
        wanted = [one for one in tensors_in(result) if one.requires_grad]
        wanted = [one for one in wanted if one.layout is torch.strided]
        if wanted:
            torch.autograd.backward(wanted, [torch.randn_like(one) for one in wanted])
    return tool


def false_failures(op: Any, dtype: torch.dtype, seed: int, seconds: float) -> Iterator[str]:
    for sample in samples(op, dtype, seed, seconds):
        for reference in ("cpu", "float64"):
            try:
                tool = compared(op, sample, reference)
            except (AssertionError, RuntimeError):
                return  # what this machine or torch itself does not have
            failed = {row.op.rpartition(".")[2] for row in tool.summary.rows if row.failed}
            wrong = {name for name in failed if dtype not in OVERFLOW.get(name, ())}
            if wrong or tool.errors:
                yield f"{dtype} {seed} {reference}: {sorted(wrong)} failed, {tool.errors} errors"


def check(chosen: Iterable[Any], seeds: Iterable[int], seconds: float) -> None:
    found = {}
    for op, dtype, seed in itertools.product(chosen, DTYPES, seeds):
        if dtype in op.supported_dtypes("cpu"):
            said = list(false_failures(op, dtype, seed, seconds))
            if said:
                found[op.full_name, str(dtype), seed] = said[0]
    assert not found, found


def found_spoilt(chosen: Iterable[Any]) -> Counter[str]:
    """How many of the first samples of each operator with a wrong element were found."""
    counts = Counter[str]()
    for op, dtype in itertools.product(chosen, SPOILT_BY):
        if dtype not in op.supported_dtypes("cpu"):
            continue
        for sample in itertools.islice(samples(op, dtype, 0, SECONDS), 3):
            try:
                with Spoiler(SPOILT_BY[dtype]) as spoiler:
                    tool = compared(op, sample, "float64")
            except (AssertionError, RuntimeError):
                break
            rows = [row for row in tool.summary.rows if row.op.endswith(f".{spoiler.name}")]
            if spoiler.name and not any(row.skipped for row in rows):
                counts["found" if tool.summary.failed else f"missed {op.name} {dtype}"] += 1
    return counts


def check_spoilt(chosen: list[Any]) -> None:
    counts = found_spoilt(chosen)
    assert counts["found"] >= FOUND_LEAST * counts.total() > 0, counts


@pytest.mark.thorough
@pytest.mark.timeout(400)
def test_what_failed_once_agrees() -> None:
    chosen = [op for op in op_db if op.name in ONCE]
    assert {op.name for op in chosen} >= ONCE.keys() - {"grid_sampler_3d"}
    check(chosen, SEEDS[:1], SECONDS / 10)


@pytest.mark.timeout(240)
def test_what_is_spoilt_is_found() -> None:
    check_spoilt([op for op in op_db[::20] if op.name not in NOT_RUN])


@pytest.mark.thorough
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("part", range(PARTS))
def test_every_operator_agrees(part: int) -> None:
    check([op for op in op_db[part::PARTS] if op.name not in NOT_RUN], SEEDS, SECONDS)


@pytest.mark.thorough
@pytest.mark.timeout(900)
@pytest.mark.parametrize("part", range(3))
def test_every_spoilt_operator_is_found(part: int) -> None:
    check_spoilt([op for op in op_db[part::3] if op.name not in NOT_RUN])
