"""The tools on what torch tests itself with: its databases of operators, modules and optimizers.

They are private to torch; where a version has none, the tests are skipped.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("expecttest", reason="torch's databases need expecttest")

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from my_utils.compare_tool import CompareWithCPU, NanInfTracker, OpRecorder, open_module_tracker
from my_utils.profilers.operators.inputs import tensors_in
from my_utils.tensors import diverge

op_db = pytest.importorskip("torch.testing._internal.common_methods_invocations").op_db
module_db = pytest.importorskip("torch.testing._internal.common_modules").module_db

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[3]
PARTS = 12
SECONDS_OF_AN_OPERATOR = 4.0  # and of a dtype; the samples after that are left out
DTYPES = (torch.float32, torch.complex64)

# Operators that give memory as it is: nothing is tested, nor is it the same twice.
UNINITIALISED = ("empty", "new_empty")
LEFT_OUT = {
    "chalf": "torch computes little in complex32",
    "linspace": "of one overload a sample of torch itself raises",
    "linalg.lstsq": "its results are memory as it is where LAPACK refuses an empty matrix",
}
# Modules whose first input torch itself refuses.
NOT_RUN = {
    "nn.FractionalMaxPool2d": "random samples of another dtype",
    "nn.FractionalMaxPool3d": "random samples of another dtype",
}
NOT_THE_SAME_TWICE = {
    "nn.CircularPad2d": "copies corners that nothing has filled yet, and fills them afterwards",
    "nn.CircularPad3d": "the same",
}
# Of which any mode changes the last bits of a result, also one that does nothing: torch then takes
# another way through the products of lazily conjugated matrices.
CHANGED_BY_ANY_MODE = {"pinverse", "linalg.pinv", "linalg.pinv.singular"}


class Nothing(TorchDispatchMode):
    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        return func(*args, **(kwargs or {}))


def samples(op: Any, most: int | None = None) -> Iterator[Any]:
    """most: of each dtype."""
    for dtype in DTYPES:
        if dtype not in op.supported_dtypes("cpu"):
            continue
        grad = op.supports_autograd and dtype in op.supported_backward_dtypes("cpu")
        end = time.monotonic() + SECONDS_OF_AN_OPERATOR
        torch.manual_seed(0)
        made = op.sample_inputs("cpu", dtype, requires_grad=grad)
        for sample in itertools.islice(made, most):
            yield sample
            if time.monotonic() > end:
                break


def called(op: Any, sample: Any, mode: Any) -> Any:
    torch.manual_seed(1)
    with warnings.catch_warnings(), mode:
        warnings.simplefilter("ignore")
        return op(sample.input, *sample.args, **sample.kwargs)


def are_same(first: Any, second: Any) -> bool:
    pairs = zip(tensors_in(first), tensors_in(second), strict=True)
    return all(a.dtype == b.dtype and _bytes(a) == _bytes(b) for a, b in pairs)


def _bytes(tensor: Tensor) -> Any:
    dense = tensor.detach().to_dense() if tensor.layout is not torch.strided else tensor.detach()
    if dense.dtype is torch.bfloat16 or dense.is_nested or dense.is_quantized:
        return dense.tolist()
    return dense.resolve_conj().resolve_neg().contiguous().numpy().tobytes()


def end_quietly(tool: Any) -> Any:
    """The tool, whose block does not end with an error where nothing could be tested."""
    tool._end_untested = lambda text: None
    return tool


def problems(op: Any) -> Iterator[str]:
    for sample in samples(op):
        try:
            bare = called(op, sample, Nothing())  # type: ignore[no-untyped-call]
        except AssertionError:
            return  # what this machine does not have
        tools: dict[str, Any] = {
            "float64": CompareWithCPU(verbose=False, reference="float64"),
            "cpu": CompareWithCPU(verbose=False),
            "nan": NanInfTracker(),
            "recorder": OpRecorder(),
        }
        for name, tool in tools.items():
            result = called(op, sample, end_quietly(tool))
            if tool.errors:
                yield f"{name}: {tool.errors} errors"
            if not op.name.startswith(UNINITIALISED) and not are_same(result, bare):
                yield f"{name}: another result"
        for name in ("cpu", "float64"):
            failed = {row.op.split(".")[-1] for row in tools[name].summary.rows if row.failed}
            if failed:
                yield f"{name}: {failed} failed"
        yield from missed_nan(op, sample)


def missed_nan(op: Any, sample: Any) -> Iterator[str]:
    """A NaN in the first input that goes to the result is found."""
    given = sample.input
    if not isinstance(given, Tensor) or given.layout is not torch.strided or not given.numel():
        return
    if not (given.is_floating_point() or given.is_complex()):
        return
    spoilt = given.detach().clone(memory_format=torch.contiguous_format)
    spoilt.view(-1)[0] = torch.nan
    sample.input = spoilt
    tracker = end_quietly(NanInfTracker())
    try:
        result = called(op, sample, tracker)
    except (RuntimeError, ValueError, IndexError):
        return  # the operator refuses it
    finally:
        sample.input = given  # torch makes the next sample of it
    are_one = torch._C._is_alias_of  # type: ignore[attr-defined]
    fresh = [one for one in tensors_in(result) if not are_one(one, spoilt)]
    values = [one for one in fresh if one.is_floating_point() or one.is_complex()]
    is_there = any(one.isnan().any() for one in values) and tracker._tested
    if is_there and not tracker.findings and not op.name.startswith(UNINITIALISED):
        yield "a NaN was not found"


def check_operators(chosen: list[Any]) -> None:
    found = {}
    for op in chosen:
        said = sorted(set(problems(op)))
        if said:
            found[op.full_name] = said
    assert not found, found


def changes_with_a_mode(op: Any) -> bool:
    for sample in samples(op, most=6):
        try:
            first, again = (called(op, sample, contextlib.nullcontext()) for _ in range(2))
            with_mode = called(op, sample, Nothing())  # type: ignore[no-untyped-call]
        except AssertionError:
            return False  # what this machine does not have
        if are_same(first, again) and not are_same(first, with_mode):
            return True
    return False


@pytest.mark.thorough
@pytest.mark.timeout(600)
@pytest.mark.parametrize("part", range(PARTS))
def test_what_any_mode_changes(part: int) -> None:
    """Of all others, the results under a tool are those without it."""
    known = [op for op in op_db[part::PARTS] if op.name not in LEFT_OUT]
    chosen = [op for op in known if not op.name.startswith(UNINITIALISED)]
    assert {op.full_name for op in chosen if changes_with_a_mode(op)} <= CHANGED_BY_ANY_MODE


@pytest.mark.thorough
@pytest.mark.timeout(600)
@pytest.mark.parametrize("part", range(PARTS))
def test_every_operator(part: int) -> None:
    check_operators([op for op in op_db[part::PARTS] if op.name not in LEFT_OUT])


@pytest.mark.timeout(240)
def test_some_operators() -> None:
    """Those that have failed before, and one of each kind."""
    names = {
        *("cov", "matmul", "baddbmm", "sparse.mm", "matrix_exp", "nan_to_num", "fft.hfft", "sum"),
        *("nn.functional.ctc_loss", "nn.functional.embedding_bag", "linalg.eigh", "linalg.svdvals"),
        *("nn.functional.conv2d", "nn.functional.dropout", "sort", "index_put", "softmax", "empty"),
    }
    chosen = [op for op in op_db if op.name in names]
    assert {op.name for op in chosen} >= names - {"sparse.mm"}
    check_operators(chosen)


# --- modules ---


def record(path: Path, info: Any, nudged: bool) -> bool:
    """Two steps of a module, with gradients; before the second one a weight may be nudged. False
    where there is none."""
    torch.manual_seed(0)
    settings = {"device": "cpu", "dtype": torch.float32, "requires_grad": True, "training": True}
    given = info.module_inputs_func(info, **settings)[0]
    model = info.module_cls(*given.constructor_input.args, **given.constructor_input.kwargs)
    recorder = OpRecorder()
    inputs = given.forward_input
    with open_module_tracker(model), recorder:
        for step in range(2):
            weights = [weight for weight in model.parameters() if step and weight.numel()]
            if nudged and step:
                if not weights:
                    return False
                with torch.no_grad():
                    weights[0].view(-1)[0].add_(0.01)
            results = tensors_in(model(*inputs.args, **inputs.kwargs))
            wanted = [result.abs().sum() for result in results if result.requires_grad]
            if wanted:
                torch.stack(wanted).sum().backward(retain_graph=True)
            recorder.step()
    assert recorder.errors == 0
    recorder.save(path)
    return True


def check_module(info: Any, folder: Path) -> Iterator[str]:
    first, again, other = (folder / name for name in ("first.pt", "again.pt", "other.pt"))
    try:
        record(first, info, False)
    except (RuntimeError, TypeError, ValueError) as error:
        if info.name in NOT_RUN:
            return
        yield f"{error}"
        return
    record(again, info, False)
    if diverge.compare_files(first, again).status != "same":
        yield "another recording the second time"
    if record(other, info, True):
        report = diverge.compare_files(first, other)
        if report.status != "different":
            yield "a weight that was nudged is not named"


@pytest.mark.thorough
@pytest.mark.timeout(600)
def test_every_module(tmp_path: Path) -> None:
    check_modules(module_db, tmp_path)


@pytest.mark.timeout(120)
def test_some_modules(tmp_path: Path) -> None:
    names = {"nn.LSTM", "nn.Linear", "nn.LazyConv2d", "nn.BatchNorm1d", "nn.MultiheadAttention"}
    chosen = [info for info in module_db if info.name in names]
    assert len(chosen) >= len(names)
    check_modules(chosen, tmp_path)


def check_modules(chosen: list[Any], folder: Path) -> None:
    found = {}
    for info in chosen:
        said = list(check_module(info, folder))
        if said and info.name not in NOT_THE_SAME_TWICE:
            found[info.name] = said
    assert not found, found


# --- optimizers ---

OPTIMIZERS = """
import torch
from torch.testing._internal.common_optimizers import optim_db
from my_utils.tensors import tensor_hash
for info in optim_db:
    for given in info.optim_inputs_func(device="cpu"):
        torch.manual_seed(0)
        shapes = [torch.nn.Linear(4, 4, bias=False), torch.nn.Linear(4, 2, bias=False)]
        model = torch.nn.Sequential(*shapes)
        name = f"{info.optim_cls.__name__} {given.desc}"
        try:
            optimizer = info.optim_cls(model.parameters(), **given.kwargs)
        except Exception as error:
            print(name, type(error).__name__)
            continue
        def closure():
            optimizer.zero_grad()
            loss = model(torch.ones(3, 4)).square().sum()
            loss.backward()
            return loss
        try:
            for _ in range(3):
                optimizer.step(closure)
        except RuntimeError as error:
            print(name, type(error).__name__)
        print(name, [tensor_hash(weight.detach()).content for weight in model.parameters()])
"""


@pytest.mark.thorough
@pytest.mark.timeout(240)
def test_every_optimizer_under_my_utils_run(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(OPTIMIZERS)
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    printed = []
    for command in (["train.py"], ["-m", "my_utils.run", "-o", "run", "train.py"]):
        done = subprocess.run(
            [sys.executable, *command],
            env={**os.environ, "PYTHONPATH": path},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=100,
        )
        assert done.returncode == 0, done.stderr[-4000:]
        printed.append(done.stdout)
    assert printed[0] == printed[1] and printed[0].count("\n") > 50
