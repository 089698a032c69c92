"""What one short profile says in figures: time on the device, time in operators, memory.

torch makes an object with seventy fields of each event before it sums anything up, which takes
longer than the profile. Here the few fields that count are read from the events as the profiler
has them.

>>> import torch
>>> with torch.profiler.profile(profile_memory=True) as profile:
...     kept = torch.ones(256)
>>> figures = figures_of(profile, began_ns=0)
>>> figures.cpu_ns > 0, figures.device_ns, figures.memory["cpu"].peak
(True, 0, 1024)
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

__all__ = ["EntryFigures", "MemoryCurve", "figures_of", "levels_now"]

MEMORY_EVENT = "[memory]"  # as torch names it
CURVE_MAX = 4096  # points of a curve that are kept


@dataclass(slots=True)
class MemoryCurve:
    """Bytes given out, over time.

    A device's allocator is asked for its level when the profile begins. Nothing tells the one of
    the CPU, so its curve begins at 0 and is what the profile added.
    """

    times_ns: list[int] = field(default_factory=list)  # since the profile began
    levels: list[int] = field(default_factory=list)  # bytes
    peak: int = 0
    end: int = 0

    def thinned(self) -> MemoryCurve:
        """At most CURVE_MAX points: the lowest and the highest of each stretch."""
        stretch = -(-2 * len(self.levels) // CURVE_MAX)
        if stretch <= 2:
            return self
        kept: list[int] = []
        for start in range(0, len(self.levels), stretch):
            at = range(start, min(start + stretch, len(self.levels)))
            kept += sorted({min(at, key=self.levels.__getitem__),
                            max(at, key=self.levels.__getitem__)})  # fmt: skip
        return MemoryCurve(
            [self.times_ns[index] for index in kept],
            [self.levels[index] for index in kept],
            self.peak,
            self.end,
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


def figures_of(profiler: Any, began_ns: int, levels: dict[str, int] | None = None) -> EntryFigures:
    """The figures of a `torch.profiler.profile` that was stopped.

    began_ns: Unix time at which it was started, where the curves begin. levels: bytes given out by
    each device then, from `levels_now`.
    """
    from torch._C._autograd import DeviceType

    cpu = DeviceType.CPU
    figures = EntryFigures()
    operators: dict[int, list[tuple[int, int]]] = {}
    changes: dict[str, list[tuple[int, int]]] = {}
    for event in profiler.profiler.kineto_results.events():
        duration = event.duration_ns()
        if duration == 0:
            if event.name() == MEMORY_EVENT:
                device = _device_name(event)
                changes.setdefault(device, []).append((event.start_ns(), event.nbytes()))
        elif event.device_type() != cpu:
            if not event.is_user_annotation():
                figures.device_ns += duration
        elif event.activity_type() == "cpu_op" and not event.is_async():
            start = event.start_ns()
            operators.setdefault(event.start_thread_id(), []).append((start, start + duration))
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


def _device_name(event: Any) -> str:
    kind = event.device_type().name.lower()
    return "cpu" if kind == "cpu" else f"{kind}:{max(event.device_index(), 0)}"


def _covered(intervals: list[tuple[int, int]]) -> int:
    """The length of their union: operators hold the operators that they call."""
    total, reached = 0, 0
    for start, end in sorted(intervals):
        if end > reached:
            total += end - max(start, reached)
            reached = end
    return total


def _curve(changes: list[tuple[int, int]], began_ns: int, level: int) -> MemoryCurve:
    curve = MemoryCurve(times_ns=[0], levels=[level], peak=level)
    for at_ns, change in sorted(changes, key=lambda each: each[0]):
        level += change
        curve.times_ns.append(max(at_ns - began_ns, 0))
        curve.levels.append(level)
    curve.peak, curve.end = max(curve.levels), level
    return curve.thinned()
