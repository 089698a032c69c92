"""One call of an operator, read from a file and run again under a tool."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from typing import Any

from .compare_mode import CompareError, CompareWithCPU
from .dump import OpCall, load_inputs
from .nan_inf_mode import NanInfError, NanInfTracker

Outcome = tuple[bool, tuple[Any, ...], dict[str, Any], Any]


def _read(inputs_path: str | os.PathLike[str], op: Any) -> OpCall:
    if not callable(op):
        raise TypeError(f"op must be an operator such as torch.ops.aten.addmm, not {op!r:.100}")
    return load_inputs(os.fspath(inputs_path))


def compare_for_single_op(
    inputs_path: str | os.PathLike[str],
    op: Any,
    atol: float | None = None,
    rtol: float | None = None,
    *,
    reference: Any = "cpu",
    namespaces: Iterable[str] = (),
) -> Outcome:
    """Runs `op` on inputs that `CompareWithCPU(dump_error_data=True)` wrote, and compares again.

    inputs_path: the file `<op>_inputs.pkl`, or that of torch_musa's own tool; nothing in it is
        executed.
    op: `torch.ops.aten.addmm`, one of its overloads, or any function that is called in the same
    way.
    atol, rtol, reference, namespaces: as for `CompareWithCPU`.

    Returns (correct, args, kwargs, out): whether all that was compared agrees, what `op` was called
    with (after the call: in-place operators wrote to it), and what it returned. The log is printed.

    Raises CompareError with the reason where nothing could be compared, ValueError for a file of
    another kind, OSError where there is none.
    """
    call = _read(inputs_path, op)
    tool = CompareWithCPU(atol=atol, rtol=rtol, reference=reference, namespaces=namespaces)
    with tool:
        out = op(*call.args, **call.kwargs)
    found = tool.summary
    if not (found.passed or found.failed):
        raise CompareError("nothing was compared", [])
    correct = found.failed == 0 and tool.errors == 0
    return correct, call.args, call.kwargs, out


def nan_inf_track_for_single_op(inputs_path: str | os.PathLike[str], op: Any) -> Outcome:
    """Runs `op` on inputs that one of the tools wrote, and searches its result for NaN and Inf.

    As `compare_for_single_op`; `correct` means no NaN, and no infinity unless an input had one.
    """
    call = _read(inputs_path, op)
    tracker, out = NanInfTracker(verbose=True), None
    with contextlib.suppress(NanInfError), tracker:
        out = op(*call.args, **call.kwargs)
    return not tracker.findings and tracker.errors == 0, call.args, call.kwargs, out
