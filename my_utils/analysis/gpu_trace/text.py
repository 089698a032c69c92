"""A breakdown for a terminal."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

from ...core.printable import printable
from ...core.units import count_text, percent_text, time_text
from ..verdict.text import wrapped
from .breakdown import COMPUTE, IDLE, ROWS, Breakdown, KernelSum
from .kinds import COMMUNICATION, COPIES

NAME_SHOWN = 44
KERNELS_SHOWN = 3
LINES_MAX = 8
WIDTH = 100


def breakdown_lines(devices: Sequence[Breakdown], most: int = LINES_MAX) -> list[str]:
    """What each device did, and the longest kernels of the first, in so many lines."""
    lines = []
    for one in devices:
        lines += wrapped(_line(one), WIDTH)
        if one is devices[0]:
            for each in one.longest[:KERNELS_SHOWN]:
                lines += wrapped(f"  {_kernel(each, one)}", WIDTH)
    if len(lines) <= most:
        return lines
    return [*lines[: most - 1], f"and {len(lines) - most + 1} more: my_utils why --ledger"]


def table_lines(devices: Sequence[Breakdown]) -> list[str]:
    """Of each device all rows that have time, and more figures below them."""
    return [line for one in devices for line in _table(one)]


def _line(one: Breakdown) -> str:
    parts = [("computes", COMPUTE), ("communicates", (COMMUNICATION,)), ("copies", (COPIES,))]
    shares = [f"{word} {percent_text(one.share(*rows))}" for word, rows in parts]
    idle = one.share(*IDLE)
    why = max(IDLE, key=lambda row: one.rows[row]).removeprefix("idle: ")
    most = f", most of that time {why}" if idle else ""
    whole = time_text(one.span_ns * 1e-6)
    return f"{_of(one)}: {', '.join(shares)}, idle {percent_text(idle)} of {whole}{most}"


def _of(one: Breakdown) -> str:
    return f"device {one.device} in {printable(os.path.basename(one.path))}"


def _table(one: Breakdown) -> Iterator[str]:
    calls = count_text(one.events, "call")
    yield f"LEDGER of {_of(one)}: {time_text(one.span_ns * 1e-6)}, {calls}"
    for row in ROWS:
        if one.rows[row]:
            yield _row(row, one.rows[row], one)
    yield _row("sum", sum(one.rows.values()), one)
    if one.communication_ns:
        yield (
            f"  communication takes {time_text(one.communication_ns * 1e-6)}, of which "
            f"{percent_text(one.hidden_share)} runs while something computes"
        )
    if one.launch_ns is not None:
        median, most = (time_text(ns * 1e-6) for ns in one.launch_ns)
        yield f"  from the host's call to the begin: {median} in the median, {most} for 1 in 100"
    for kernel in one.longest:
        yield from wrapped(f"  {_kernel(kernel, one)}", WIDTH)


def _row(name: str, ns: int, one: Breakdown) -> str:
    share = percent_text(ns / one.span_ns if one.span_ns else 0.0)
    return f"  {name:<38} {share:>7} {time_text(ns * 1e-6):>9}"


def _kernel(kernel: KernelSum, one: Breakdown) -> str:
    name = _cut(kernel.name.removeprefix("void "))
    shapes = _cut(kernel.shapes.replace(", []", ""))
    by = f" by {kernel.operator} {shapes}".rstrip() if kernel.operator else ""
    share = percent_text(kernel.ns / one.span_ns if one.span_ns else 0.0)
    return printable(f"{share:>6} {count_text(kernel.count, 'call')} of {name}{by}")


def _cut(text: str) -> str:
    return text if len(text) <= NAME_SHOWN else f"{text[: NAME_SHOWN - 3]}..."
