"""Figures of one short profile: time on the device, time in operators, memory.

torch makes an object with seventy fields of each event before it sums anything up, which takes
longer than the profile. Here the few fields that count are read from the events as the profiler
has them.

>>> import torch
>>> with torch.profiler.profile(profile_memory=True) as profile:
...     kept = torch.ones(256)
>>> figures = sum_figures(profile, began_ns=0)
>>> figures.cpu_ns > 0, figures.device_ns, figures.memory["cpu"].peak
(True, 0, 1024)
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ...core.older_torch import event_kinds

CURVE_MAX = 4096  # points of a curve that are kept


@dataclass(slots=True)
class MemoryCurve:
    """Bytes given out, over time.

    The level of a device's allocator is read when the profile begins. The CPU's allocator has no
    such figure, so its curve begins at 0 and shows what the profile added.
    """

    times_ns: list[int] = field(default_factory=list)  # since the profile began
    levels: list[int] = field(default_factory=list)  # bytes
    peak: int = 0

    def thinned(self) -> MemoryCurve:
        """At most CURVE_MAX points: the lowest and the highest of each stretch."""
        stretch = -(-2 * len(self.levels) // CURVE_MAX)
        if stretch <= 2:
            return self
        kept: list[int] = []
        for start in range(0, len(self.levels), stretch):
            part = self.levels[start : start + stretch]
            kept += sorted({start + part.index(min(part)), start + part.index(max(part))})
        return MemoryCurve(
            [self.times_ns[index] for index in kept],
            [self.levels[index] for index in kept],
            self.peak,
        )


@dataclass(slots=True)
class EntryFigures:
    """Of one profile.

    device_ns: the summed time of kernels and copies, as torch's "Self CUDA time total".
    cpu_ns: time during which operators ran, summed over threads.
    memory: by device: "cpu", "cuda:0".
    """

    device_ns: int = 0
    cpu_ns: int = 0
    memory: dict[str, MemoryCurve] = field(default_factory=dict)


def sum_figures(profiler: Any, began_ns: int, levels: dict[str, int] | None = None) -> EntryFigures:
    """The figures of a `torch.profiler.profile` that was stopped.

    began_ns: Unix time at which it was started, where the curves begin. levels: bytes given out by
    each device then, from `levels_now`.
    """
    from torch._C._autograd import DeviceType

    cpu = DeviceType.CPU
    figures = EntryFigures()
    operators: dict[int, _Columns] = {}
    changes: dict[str, _Columns] = {}
    results = profiler.profiler.kineto_results
    kind_of = event_kinds(results)
    for event in results.events():
        kind = kind_of(event)
        if kind == "cpu_op":
            thread = event.start_thread_id()
            if (columns := operators.get(thread)) is None:
                columns = operators[thread] = _Columns([], [])
            columns.at_ns.append(event.start_ns())
            columns.value.append(event.end_ns())
        elif kind == "cpu_instant_event":
            if size := event.nbytes():  # only allocations have one
                index = event.device_index()  # of the CPU -1
                device = "cpu" if index < 0 else f"{event.device_type().name.lower()}:{index}"
                if (columns := changes.get(device)) is None:
                    columns = changes[device] = _Columns([], [])
                columns.at_ns.append(event.start_ns())
                columns.value.append(size)
        elif event.device_type() != cpu and not event.is_user_annotation():
            figures.device_ns += event.duration_ns()
    figures.cpu_ns = sum(map(_covered, operators.values()))
    for device, found in changes.items():
        figures.memory[device] = _curve(found, began_ns, (levels or {}).get(device, 0))
    return figures


def levels_now() -> dict[str, int]:
    """Bytes that torch's CUDA allocator has given out on each device; empty without CUDA."""
    import torch

    if not torch.cuda.is_available() or not torch.cuda.is_initialized():
        return {}
    return {
        f"cuda:{index}": torch.cuda.memory_allocated(index)
        for index in range(torch.cuda.device_count())
    }


class _Columns(NamedTuple):
    """Times with a value each. A tuple for each of them would set off the garbage collector."""

    at_ns: list[int]
    value: list[int]

    def order(self) -> list[int]:
        return sorted(range(len(self.at_ns)), key=self.at_ns.__getitem__)


def _covered(intervals: _Columns) -> int:
    """The length of the union of starts and ends: operators hold the operators that they call."""
    total, reached = 0, 0
    for index in intervals.order():
        start, end = intervals.at_ns[index], intervals.value[index]
        if end > reached:
            total += end - max(start, reached)
            reached = end
    return total


def _curve(changes: _Columns, began_ns: int, level: int) -> MemoryCurve:
    curve = MemoryCurve(times_ns=[0], levels=[level])
    for index in changes.order():
        level += changes.value[index]
        curve.times_ns.append(max(changes.at_ns[index] - began_ns, 0))
        curve.levels.append(level)
    curve.peak = max(curve.levels)
    return curve.thinned()
