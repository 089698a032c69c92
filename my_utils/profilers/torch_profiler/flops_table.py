"""The table of operators that a profiled function prints: FLOPs, times, calls."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ...core.tables import text_table
from .flops import count_flops
from .torch_profile import device_time

ROWS = 20
UNCOUNTED = 10  # names
NAME_MAX = 60  # characters

# An operator and no node of autograd, whose operators are listed themselves.
_OPERATOR = re.compile(r"(?!autograd::|torch::autograd::)\w+::[\w:.<>]+")


class Operator(NamedTuple):
    """One row: times in microseconds, with those of the operators that it calls."""

    name: str
    flops: int
    cpu_total: float
    device_total: float
    calls: int


def has_operators(profiler: Any) -> bool:
    """Whether a profiler of torch saw any operator."""
    return any(_OPERATOR.fullmatch(event.name) for event in profiler.events())


def list_operators(profiler: Any, flops: Mapping[str, int]) -> list[Operator]:
    """All operators that a profiler of torch saw, those first that took longest on the device."""
    rows = [
        Operator(
            row.key, flops.get(row.key, 0), row.cpu_time_total, row.device_time_total,
            int(row.count),
        )
        for row in profiler.key_averages()
        if row.device_type.name == "CPU" and _OPERATOR.fullmatch(row.key)
    ]  # fmt: skip
    return sorted(rows, key=lambda row: (row.device_total, row.cpu_total), reverse=True)


def summary(profiler: Any, *, title: str, with_flops: bool, steps: int | None) -> str:
    """What a profiler saw, as text: the operators that took longest, and FLOPs.

    steps: how many whole steps it saw, for FLOPs a step; None when the last was cut off.
    """
    flops = count_flops(profiler) if with_flops else None
    rows = list_operators(profiler, {} if flops is None else flops.counted)
    on_device = device_time(profiler)
    clock = "CUDA" if on_device else "CPU"
    lines = [f"{title}: top operations by {clock} time"]
    lines += _table(rows[:ROWS], with_flops, on_device).splitlines()
    if len(rows) > ROWS:
        lines.append(f"operators not shown: {len(rows) - ROWS}")
    if flops is not None:
        lines.append(_total(profiler, sum(row.flops for row in rows), steps))
        lines += _uncounted(flops.calls_uncounted.most_common())
    return "\n".join(lines)


def operators_by_time(profiler: Any) -> str:
    """A table of all operators that a profiler saw, without shapes and stacks."""
    return _table(list_operators(profiler, {}), False, device_time(profiler))


def _uncounted(found: Sequence[tuple[str, int]]) -> list[str]:
    """A line of the operators that calculate and have no formula, those first that came most."""
    if not found:
        return []
    names = ", ".join(f"{name} ({calls})" for name, calls in found[:UNCOUNTED])
    more = f", {len(found) - UNCOUNTED} more" if len(found) > UNCOUNTED else ""
    return [f"FLOPs not counted of operators without a formula (calls): {names}{more}"]


def _table(rows: Sequence[Operator], with_flops: bool, on_device: bool) -> str:
    header = ["Name", "Self FLOPS", "CPU total", "CUDA total", "# of Calls"]
    cells = [
        [
            row.name if len(row.name) <= NAME_MAX else f"{row.name[: NAME_MAX - 1]}…",
            scaled(row.flops) if row.flops else "-",
            _time(row.cpu_total),
            _time(row.device_total) if on_device else "-",
            str(row.calls),
        ]
        for row in rows
    ]
    if not with_flops:
        for line in (header, *cells):
            del line[1]
    head, *rest = text_table(header, cells, left=1).splitlines()
    rule = "-" * max(map(len, (head, *rest)))
    return "\n".join((rule, head, rule, *rest, rule))


def _total(profiler: Any, flops: int, steps: int | None) -> str:
    microseconds = _span(profiler.events())
    if not steps or not microseconds:
        return f"FLOPs: {scaled(flops)}"
    return (
        f"FLOPs a step: {scaled(flops / steps)}, {scaled(flops / microseconds * 1e6)} a second "
        f"({_time(microseconds / steps)} a step)"
    )


def _span(events: Sequence[Any]) -> float:
    """From the first step to the end of the last, or of the device's work, if that is later."""
    begins = [event.time_range.start for event in events if event.name.startswith("ProfilerStep")]
    return max((event.time_range.end for event in events), default=0) - min(begins, default=0)


def scaled(number: float) -> str:
    """With the letter of its thousands: 1.074G.

    >>> scaled(1_073_741_824), scaled(12)
    ('1.074G', '12')
    """
    if number < 1000:
        return f"{number:.0f}"
    letters = "KMGTP"
    power = min(int(math.log(number, 1000) + 1e-9), len(letters))
    return f"{number / 1000**power:.3f}{letters[power - 1]}"


def _time(microseconds: float) -> str:
    for unit, size in (("s", 1e6), ("ms", 1e3)):
        if microseconds >= size:
            return f"{microseconds / size:.3f}{unit}"
    return f"{microseconds:.3f}us"
