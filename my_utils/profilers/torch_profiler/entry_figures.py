"""Figures of one short profile: time on the device, time in operators, memory.

torch makes an object with seventy fields of each event before it sums anything up, which takes
longer than the profile. Here the few fields that count are read from the events as the profiler
has them.

>>> import torch
>>> with torch.profiler.profile(profile_memory=True) as profile:
...     kept = torch.ones(256)
>>> figures = sum_figures(profile, began_ns=0, levels={})
>>> figures.cpu_ns > 0, figures.device_ns, figures.memory["cpu"].peak
(True, 0, 1024)
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ...core.lazy_modules import lazy_module
from ...core.older_torch import event_kinds

if TYPE_CHECKING:
    import numpy as np
else:
    np = lazy_module("numpy")

CURVE_MAX = 4096  # points of a curve that are kept

_Columns = tuple[list[int], list[int]]


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


def sum_figures(profiler: Any, began_ns: int, levels: dict[str, int]) -> EntryFigures:
    """The figures of a `torch.profiler.profile` that was stopped.

    began_ns: Unix time at which it was started, where the curves begin. levels: bytes given out by
    each device then, from `levels_now`.
    """
    from torch._C._autograd import DeviceType

    cpu = DeviceType.CPU
    figures = EntryFigures()
    # Lists: a tuple for each event would set off the garbage collector.
    operators: defaultdict[int, _Columns] = defaultdict(lambda: ([], []))  # starts, ends by thread
    changes: defaultdict[str, _Columns] = defaultdict(lambda: ([], []))  # times, bytes by device
    results = profiler.profiler.kineto_results
    kind_of = event_kinds(results)
    for event in results.events():
        kind = kind_of(event)
        if kind == "cpu_op":
            starts, ends = operators[event.start_thread_id()]
            starts.append(event.start_ns())
            ends.append(event.end_ns())
        elif kind == "cpu_instant_event":
            if size := event.nbytes():  # only allocations have one
                index = event.device_index()  # of the CPU -1
                device = "cpu" if index < 0 else f"{event.device_type().name.lower()}:{index}"
                times, sizes = changes[device]
                times.append(event.start_ns())
                sizes.append(size)
        elif event.device_type() != cpu and not event.is_user_annotation():
            figures.device_ns += event.duration_ns()
    figures.cpu_ns = sum(_covered(*found) for found in operators.values())
    for device, found in changes.items():
        figures.memory[device] = _curve(*found, began_ns, levels.get(device, 0))
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


def _covered(starts: list[int], ends: list[int]) -> int:
    """The length of the union: operators hold the operators that they call."""
    order = np.argsort(starts)
    begins = np.array(starts)[order]
    reached = np.maximum.accumulate(np.array(ends)[order])
    begins[1:] = np.maximum(begins[1:], reached[:-1])
    return int(np.maximum(reached - begins, 0).sum())


def _curve(times: list[int], sizes: list[int], began_ns: int, level: int) -> MemoryCurve:
    order = np.argsort(times, kind="stable")
    since = np.maximum(np.array(times)[order] - began_ns, 0)
    levels = [level, *(level + np.cumsum(np.array(sizes)[order])).tolist()]
    return MemoryCurve([0, *since.tolist()], levels, max(levels)).thinned()
