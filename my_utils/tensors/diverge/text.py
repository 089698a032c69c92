"""The text of a `diverge` report."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from ...core.printable import printable
from ...core.ranges import as_ranges, ranges_text
from ...core.terminal import table_lines
from ..recordings.recording import Recording
from .verdict import Verdict, worst

if TYPE_CHECKING:
    from .result import CallCheck, Figures, RankReport, Report, TensorCheck

_PARTS = ("inputs", "weights", "outputs", "gradients")
_SHOWN_TENSORS = 8


def render(report: Report, limit: int | None = 20) -> str:
    """The report as text that ends with a line end; `limit` rows of the table, None for all. What
    recordings say steers no terminal."""
    lines = [f"A  {report.path_a}", f"B  {report.path_b}", *report.notes, ""]
    lines = [printable(line) for line in lines]
    for rank in report.ranks:
        lines += map(printable, _rank(rank, alone=len(report.ranks) == 1))
        if rank.difference is not None:
            lines += _growth(rank, limit)
    lines.append(printable(_conclusion(report)))
    return "\n".join(lines) + "\n"


def _conclusion(report: Report) -> str:
    if report.status == "same":
        return f"no difference: {report.reason}" if report.reason else "no difference"
    if report.status == "not comparable":
        return f"not comparable: {report.reason}"
    if len(report.ranks) == 1:
        return "the runs differ"
    differ = [rank.rank for rank in report.ranks if rank.status == "different"]
    noun = "rank" if len(differ) == 1 else "ranks"
    return f"the runs differ on {noun} {ranges_text(as_ranges(differ))}"


def _rank(rank: RankReport, alone: bool) -> Iterator[str]:
    if not alone:
        yield f"rank {rank.rank}: {rank.status}"
    yield f"A  {_described(rank.recording_a)}"
    yield f"B  {_described(rank.recording_b)}"
    yield (
        f"{len(rank.checks)} calls are in both; {rank.only_a} only in A, {rank.only_b} only in B"
    )
    if rank.renamed:
        shown = [f"{new} in B is {old} in A" for new, old in list(rank.renamed.items())[:3]]
        more = len(rank.renamed) - len(shown)
        yield "renamed: " + ", ".join(shown) + (f" and {more} more" if more else "")
    yield ""
    if rank.difference is not None:
        yield from _difference(rank)


def _described(recording: Recording) -> str:
    calls = sum(event.phase == "forward" for event in recording.events)
    modules = len({event.module for event in recording.events})
    return (
        f"{recording.name or 'unnamed'}, rank {recording.rank} of {recording.world_size}: "
        f"{calls} calls of {modules} modules, torch {recording.torch or 'unknown'}"
    )


# --- the first difference ---


def _difference(rank: RankReport) -> Iterator[str]:
    found = rank.difference
    assert found is not None
    if found.call is None:
        yield "first difference"
    else:
        yield f"first difference: {found.call.title}, call {found.call.event.call}"
    yield f"  {found.text}"
    if found.call is not None:
        for part in _PARTS:
            yield from _tensors(part, getattr(found.call, part))
    elif found.evidence:
        yield from _tensors("gradients", found.evidence)
    yield ""


def _tensors(part: str, checks: Sequence[TensorCheck]) -> Iterator[str]:
    """The tensors of a kind: those that agree in one line, the others one by one."""
    if not checks:
        if part != "gradients":
            yield f"  {part:<10} not recorded in both"
        return
    agreeing = [check for check in checks if check.verdict.agrees]
    others = [check for check in checks if not check.verdict.agrees]
    if agreeing:
        verdict = worst(check.verdict for check in agreeing)
        yield f"  {part:<10} {verdict:<10} {_names(agreeing)}"
    for check in others[:_SHOWN_TENSORS]:
        yield f"  {part:<10} {check.verdict:<10} {_one(check)}"
    if len(others) > _SHOWN_TENSORS:
        yield f"  {part:<10} and {len(others) - _SHOWN_TENSORS} more"


def _names(checks: Sequence[TensorCheck]) -> str:
    shown = [check.path or "the tensor" for check in checks[:_SHOWN_TENSORS]]
    more = len(checks) - len(shown)
    return ", ".join(shown) + (f" and {more} more" if more else "")


def _one(check: TensorCheck) -> str:
    meta = check.second or check.first
    shape = "" if meta is None else f"{tuple(meta.shape)} {meta.dtype}"
    words = [check.path or "the tensor", shape, check.why]
    return "  ".join(filter(None, [*words, _figures(check.figures)]))


def _figures(figures: Figures | None) -> str:
    if figures is None:
        return ""
    words = []
    if figures.max_abs is not None:
        words.append(f"max |a-b| {figures.max_abs:.3g}")
    if figures.rel_l2 is not None:
        least = "at least " if figures.source == "stats" else ""
        words.append(f"|a-b|/|b| {least}{figures.rel_l2:.3g}")
    if figures.cosine is not None:
        words.append(f"cosine {figures.cosine:.9g}")
    if figures.nans is not None:
        words.append(f"NaN or infinite: {figures.nans[0]} in A, {figures.nans[1]} in B")
    source = f" (of a sample of {figures.elements})" if figures.source == "sample" else ""
    return ", ".join(words) + source


# --- the table ---


def _growth(rank: RankReport, limit: int | None) -> Iterator[str]:
    """From the first difference on, every call whose inputs or results differ."""
    rows = [
        check
        for check in rank.checks
        if check.exception is not None
        or Verdict.DIFFERENT in (check.input_verdict, check.output_verdict, check.weight_verdict)
    ]
    if not rows:
        return
    shown = rows if limit is None else rows[:limit]
    cells = [_row(check) for check in shown]
    heads = ("how the difference grows", "inputs", "outputs", "|a-b|/|b|", "max |a-b|")
    yield from table_lines([heads, *cells], left=3)
    if len(rows) > len(shown):
        yield f"and {len(rows) - len(shown)} more calls (--limit)"
    yield ""


def _row(check: CallCheck) -> tuple[str, str, str, str, str]:
    call = f"{check.title} #{check.event.call}"
    figures = largest(check)
    rel = max_abs = ""
    if figures is not None:
        least = ">= " if figures.source == "stats" else ""
        rel = "" if figures.rel_l2 is None else f"{least}{figures.rel_l2:.3g}"
        max_abs = "" if figures.max_abs is None else f"{figures.max_abs:.3g}"
    words = [check.input_verdict or "-", check.exception or check.output_verdict or "-"]
    return call, str(words[0]), str(words[1]), rel, max_abs


def largest(check: CallCheck) -> Figures | None:
    """The figures of the output that is farthest off."""
    known = [output.figures for output in check.outputs if output.figures is not None]
    return max(known, key=_size, default=None)


def _size(figures: Figures) -> float:
    size = figures.rel_l2 if figures.rel_l2 is not None else figures.max_abs
    return -1.0 if size is None else math.inf if size != size else size
