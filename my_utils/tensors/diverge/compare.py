"""Names the first place where two runs differ.

    my_utils diverge A.pt B.pt

compares two recordings of `my_utils.module_hook.ForwardTraceRecorder`, or two directories with one
recording a rank. It prints the first module whose inputs agree and whose outputs differ, the size
of the difference, and how it grows from there on. It names the cause: different weights, different
inputs, a different result from the same inputs, a difference that arises between two modules (in
the code of the module around them), or another `Cause`.

Calls are matched by module and number. Names may differ by what wrappers add (`module.`,
`_orig_mod.`, `_fsdp_wrapped_module.` and the like) or by a prefix; calls that only one run made,
and those that activation checkpointing made again, are left out. Tensors agree when their digests
do; with `--rtol` or `--atol`, between two dtypes, and between runs of one and of several ranks,
samples and statistics decide, so record those then.

>>> from my_utils.module_hook import Recording, RootCall, TraceEvent, TraceTensorMeta
>>> def run(digest):
...     out = TraceTensorMeta("", (2,), "float32", "cpu", hash=digest, hash_kind="tensor")
...     x = TraceTensorMeta("0", (2,), "float32", "cpu", hash="aa", hash_kind="tensor")
...     event = TraceEvent(0, "fc", "Linear", end_index=0, root=0, inputs=[x], outputs=[out])
...     return Recording(roots=[RootCall(0, "fc")], events=[event])
>>> report = compare_recordings(run("0b"), run("0c"))
>>> report.status, report.difference.cause.value, report.difference.call.name
('different', 'result', 'fc')
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, cast

from ...core.arguments import check_tolerance
from ...core.command_line import (
    CommandParser,
    add_json,
    add_output,
    add_quiet,
    fail,
    parser,
    run_cli,
)
from ...core.outputs import open_output
from ...core.printable import encoded
from ...core.progress import Progress
from ..recordings.recording import Recording, RecordingError
from .align import align
from .gradients import first_gradient
from .ranks import Side, join_ranks, read_side
from .result import (
    EXIT_NOT_COMPARABLE,
    CallCheck,
    CallData,
    Difference,
    Figures,
    FiguresData,
    RankData,
    RankReport,
    Report,
    ReportData,
    Status,
    TensorCheck,
    TensorData,
)
from .search import check_call, find_first
from .tensors import Rules
from .text import largest, render

SCHEMA_VERSION: Final = 1

_LOCAL_MEANS = (
    "gradients were not compared: with other numbers of ranks the means of local batches, and so "
    "the gradients, differ"
)

_STATUSES = """\
0  no difference was found
1  the runs differ
2  not comparable: a file cannot be read, no call is in both, or nothing that was recorded of \
them can be compared; also wrong arguments
"""


def compare_recordings(
    first: Recording,
    second: Recording,
    *,
    rtol: float | None = None,
    atol: float | None = None,
) -> RankReport:
    """Compares two recordings in memory, as returned by `ForwardTraceRecorder.snapshot()`.

    rtol, atol: agree where |a - b| <= atol + rtol * |b|, as far as samples and statistics show;
        without either, bit for bit. Where only one is given the other is 0.

    ValueError for a tolerance that is negative or not finite; TypeError if one is not a recording.
    (`ForwardTraceRecorder.recording` is not one: it says whether calls are recorded now.)
    """
    _check_recording("first", first)
    _check_recording("second", second)
    check_tolerance("rtol", rtol)
    check_tolerance("atol", atol)
    if (rtol is None) != (atol is None):
        rtol, atol = rtol or 0.0, atol or 0.0
    rules = Rules(
        rtol=rtol,
        atol=atol,
        samples_match=_sampling(first) == _sampling(second),
        shapes_may_differ=first.world_size != second.world_size,
        kinds=_kinds(first) & _kinds(second),
    )
    return _compare(first, second, rules)


def _check_recording(name: str, given: object) -> None:
    if not isinstance(given, Recording):
        raise TypeError(
            f"{name} must be a Recording, as ForwardTraceRecorder.snapshot() gives it,"
            f" not {given!r:.100}"
        )


def _sampling(recording: Recording) -> tuple[Any, ...]:
    return tuple(
        recording.settings.get(name) for name in ("sample_mode", "sample_max_elems", "seed")
    )


# The settings of `ForwardTraceRecorder` that say whether a kind is recorded.
_SETTINGS = {
    "inputs": ("record_inputs",),
    "outputs": ("record_outputs",),
    "buffers": ("record_buffer_md5", "record_buffer_hash"),
    "grads": ("record_grads",),
}


def _kinds(recording: Recording) -> frozenset[str]:
    """What was recorded of calls. Where the settings do not say it, what is there."""
    return frozenset(
        kind
        for kind, names in _SETTINGS.items()
        if any(recording.settings.get(name) for name in names)
        or (
            recording.settings.keys().isdisjoint(names)
            and any(getattr(event, kind) for event in recording.events)
        )
    )


def _compare(first: Recording, second: Recording, rules: Rules) -> RankReport:
    found = align(first, second)
    only_a, only_b = len(found.only_a), len(found.only_b)
    checks = [check_call(pair, rules) for pair in found.pairs]
    difference = find_first(checks) or first_gradient(first, second, rules, checks)
    status, reason = _judge(checks, difference, only_a + only_b)
    if difference is None and rules.shapes_may_differ and (first.param_grads or second.param_grads):
        reason = ", ".join(filter(None, [reason, _LOCAL_MEANS]))
    return RankReport(
        first.rank, status, reason, difference, checks, only_a, only_b, first, second, found.renamed
    )


def _judge(
    checks: list[CallCheck], difference: Difference | None, alone: int
) -> tuple[Status, str]:
    """The status, and what there is to say about it."""
    if difference is not None:
        return "different", ""
    if not checks:
        return "not comparable", "no call is in both recordings"
    tensors = [(*check.outputs, *check.inputs) for check in checks]
    decided = sum(any(tensor.verdict.agrees for tensor in each) for each in tensors)
    if decided == 0:
        reasons = (tensor.why for each in tensors for tensor in each if tensor.why)
        why = next(reasons, "inputs and outputs were left out")
        return "not comparable", f"nothing that was recorded can be compared; {why}"
    words = []
    if decided < len(checks):
        words.append(f"{len(checks) - decided} of {len(checks)} calls could not be compared")
    if alone:
        words.append(f"{alone} calls are in one recording only")
    return "same", ", ".join(words)


# --- files ---


def compare_files(
    path_a: str | os.PathLike[str],
    path_b: str | os.PathLike[str],
    *,
    rtol: float | None = None,
    atol: float | None = None,
) -> Report:
    """Compares two files, or two directories with a file a rank.

    Two directories are compared rank by rank. If one run had one rank and the other several, the
    several are combined: replicated tensors by their digests, parts of a batch or of a DTensor by
        their statistics.

    OSError if a path cannot be read, RecordingError (a ValueError) if it is not a recording.
    """
    a, b = read_side(path_a), read_side(path_b)
    notes = [*a.notes, *b.notes]
    ranks = [
        compare_recordings(first, second, rtol=rtol, atol=atol)
        for first, second in _matched(a, b, notes)
    ]
    status, reason = _overall(ranks)
    return Report(str(a.path), str(b.path), status, reason, ranks, notes)


def _matched(a: Side, b: Side, notes: list[str]) -> list[tuple[Recording, Recording]]:
    """The recordings of the same rank, or all of them where one side has one only."""
    if len(a.ranks) == 1 and len(b.ranks) == 1:
        return [(_as_one(a), _as_one(b))]
    if len(a.ranks) == 1 or len(b.ranks) == 1:
        notes.append(f"{max(len(a.ranks), len(b.ranks))} ranks are put together, to compare with 1")
        return [(_as_one(a), _as_one(b))]
    common = sorted(a.ranks.keys() & b.ranks.keys())
    for name, side, other in (("A", a, b), ("B", b, a)):
        alone = sorted(side.ranks.keys() - other.ranks.keys())
        if alone:
            notes.append(f"ranks only in {name}: {', '.join(map(str, alone))}")
    return [(a.ranks[rank], b.ranks[rank]) for rank in common]


def _as_one(side: Side) -> Recording:
    recordings = [side.ranks[rank] for rank in sorted(side.ranks)]
    return recordings[0] if len(recordings) == 1 else join_ranks(recordings)


def _overall(ranks: list[RankReport]) -> tuple[Status, str]:
    if not ranks:
        return "not comparable", "no rank is in both directories"
    if any(rank.status == "different" for rank in ranks):
        return "different", ""
    missed = [rank for rank in ranks if rank.status == "not comparable"]
    if missed:
        return "not comparable", missed[0].reason
    return "same", next((rank.reason for rank in ranks if rank.reason), "")


# --- plain data ---


def as_data(report: Report) -> ReportData:
    """The report as plain data for JSON; later versions only add keys."""
    first = report.first
    return {
        "version": SCHEMA_VERSION,
        "a": report.path_a,
        "b": report.path_b,
        "status": report.status,
        "reason": report.reason,
        "notes": report.notes,
        "first_rank": None if first is None else first.rank,
        "ranks": [_rank_data(rank) for rank in report.ranks],
    }


def _rank_data(rank: RankReport) -> RankData:
    difference = rank.difference
    return {
        "rank": rank.rank,
        "status": rank.status,
        "reason": rank.reason,
        "calls": len(rank.checks),
        "only_a": rank.only_a,
        "only_b": rank.only_b,
        "difference": None
        if difference is None
        else {
            "cause": difference.cause,
            "text": difference.text,
            "module": None if difference.call is None else difference.call.name,
            "type": None if difference.call is None else difference.call.event.type,
            "call": None if difference.call is None else difference.call.event.call,
            "evidence": [_tensor_data(check) for check in difference.evidence],
        },
        "growth": [_call_data(check) for check in rank.checks if check.parts_here],
    }


def _call_data(check: CallCheck) -> CallData:
    figures = largest(check)
    return {
        "module": check.name,
        "type": check.event.type,
        "call": check.event.call,
        "inputs": check.input_verdict,
        "weights": check.weight_verdict,
        "outputs": check.output_verdict,
        "figures": None if figures is None else _figures_data(figures),
    }


def _tensor_data(check: TensorCheck) -> TensorData:
    meta = check.second or check.first
    return {
        "path": check.path,
        "verdict": check.verdict,
        "why": check.why,
        "shape": None if meta is None else list(meta.shape),
        "dtype": None if meta is None else meta.dtype,
        "figures": None if check.figures is None else _figures_data(check.figures),
    }


def _figures_data(figures: Figures) -> FiguresData:
    """JSON has neither NaN nor infinities."""
    data: Any = {
        key: str(value) if isinstance(value, float) and not math.isfinite(value) else value
        for key, value in dataclasses.asdict(figures).items()
    }
    return cast(FiguresData, data)


# --- the command line ---


def command_parser() -> CommandParser:
    chosen = parser(
        "diverge",
        "Names the first module or operator at which two recorded runs differ.",
        [
            "my_utils diverge before.pt after.pt",
            "my_utils diverge recordings_a recordings_b --rtol 1e-5 --json",
        ],
        statuses=_STATUSES,
    )
    add = chosen.add_argument
    add("a", metavar="A", type=Path, help="a recording, or a directory of recordings")
    add("b", metavar="B", type=Path, help="the recording to compare with")
    add_output(
        chosen, "write the text, or data as .json; - is standard output (the default)",
        suffixes=(".txt", ".json"),
    )  # fmt: skip
    add("--rtol", type=float, help="relative tolerance (default: bit for bit)")
    add("--atol", type=float, help="absolute tolerance (default: bit for bit)")
    add_json(chosen, "print plain data instead of text")
    add("--limit", type=int, default=20, help="rows of the table, 0 for all (default: 20)")
    add_quiet(chosen, "no progress")
    return chosen


def main(argv: Sequence[str] | None = None) -> int:
    """The command line; returns the exit status."""
    return run_cli(lambda: _main(argv))


def _main(argv: Sequence[str] | None) -> int:
    chosen = command_parser().parse_args(argv)
    try:
        with Progress("diverge", quiet=chosen.quiet, no_color=chosen.no_color, ticking=True):
            report = compare_files(chosen.a, chosen.b, rtol=chosen.rtol, atol=chosen.atol)
    except (OSError, RecordingError, ValueError) as error:
        return fail("diverge", error, EXIT_NOT_COMPARABLE)
    output = chosen.output or "-"
    is_data = chosen.json or output.lower().endswith(".json")
    text = json.dumps(as_data(report)) + "\n" if is_data else render(report, chosen.limit or None)
    if output == "-":
        print(text, end="")
        return report.exit_code
    try:
        with open_output(output) as file:
            file.write(encoded(text))
    except OSError as error:
        return fail("diverge", error, EXIT_NOT_COMPARABLE)
    return report.exit_code


if __name__ == "__main__":
    sys.exit(main())
