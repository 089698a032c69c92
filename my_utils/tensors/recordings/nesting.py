"""Finds the nesting of calls from inside a compiled graph, where no hook sees it.

>>> outer, inner = TraceEvent(-1, "net", "Net"), TraceEvent(-1, "net.fc", "Linear")
>>> call, = nested([], [inner, outer])
>>> call.event.module, call.inside[0].event.module
('net', 'net.fc')
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from .recording import TraceEvent


@dataclass(slots=True)
class Nested:
    """A call, the one around it and those in it, in their order."""

    event: TraceEvent
    around: TraceEvent | None = None
    inside: list[Nested] = field(default_factory=list)


def names_above(name: str) -> list[str]:
    """The names of the modules around one, the innermost first.

    >>> names_above("layers.0.fc")
    ['layers.0', 'layers', '']
    """
    above = []
    while "." in name:
        name = name.rpartition(".")[0]
        above.append(name)
    return [*above, ""] if above or name else []


def nested(seen: Sequence[TraceEvent], compiled: Sequence[TraceEvent]) -> list[Nested]:
    """The compiled calls that are in no other compiled one. `seen` are those that hooks saw.

    A call is in one of the nearest module around its own: in the one with its number, where
    that module was called several times.
    """
    calls = [Nested(event) for event in compiled]
    inner: dict[str, list[Nested]] = {}
    outer: dict[str, list[TraceEvent]] = {}
    for call in calls:
        inner.setdefault(call.event.module, []).append(call)
    for event in seen:
        outer.setdefault(event.module, []).append(event)
    numbers: dict[str, int] = {}
    top = []
    for call in calls:
        number = numbers.get(call.event.module, 0)
        numbers[call.event.module] = number + 1
        for name in names_above(call.event.module):
            if name in inner:
                around = inner[name][min(number, len(inner[name]) - 1)]
                call.around = around.event
                around.inside.append(call)
                break
            if name in outer:
                call.around = outer[name][min(number, len(outer[name]) - 1)]
                top.append(call)
                break
        else:
            top.append(call)
    return top
