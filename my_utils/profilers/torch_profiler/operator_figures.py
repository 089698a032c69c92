"""The figures of single operators: every call, and statistics of all and by shape.

>>> import torch
>>> with torch.profiler.profile(record_shapes=True) as profile:
...     for size in (2, 2, 3):
...         _ = torch.ones(size, size) @ torch.ones(size, size)
>>> found = analysis(profile, {"aten::mm": "self_cuda_time_total"}, calls_max=2)
>>> mm = found["operators"]["aten::mm"]
>>> mm["figure"], mm["statistics"]["count"], len(mm["calls"]), mm["calls_left_out"]
('self_cpu_time_total', 3, 2, 1)
>>> [(group["shapes"], group["statistics"]["count"]) for group in mm["by_shape"]]
[([[2, 2], [2, 2]], 2), ([[3, 3], [3, 3]], 1)]
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ...core.older_torch import is_python_function
from .torch_profile import on_this_machine

FIGURES = (
    "self_device_time_total", "device_time_total", "device_time",
    "self_cpu_time_total", "cpu_time_total", "cpu_time",
    "self_device_memory_usage", "device_memory_usage", "self_cpu_memory_usage", "cpu_memory_usage",
)  # fmt: skip
DEFAULT_FIGURE = "self_device_time_total"


# --- arguments ---


def check_figure(name: str, figure: object, also: tuple[str, ...] = ("count",)) -> str:
    """The figure as given, when torch has it by this name or had; else TypeError, ValueError."""
    if not isinstance(figure, str):
        raise TypeError(f"{name} must be the name of a figure, not {figure!r:.100}")
    if on_this_machine(figure, has_device=True) not in (*FIGURES, *also):
        allowed = ", ".join((*FIGURES, *also))
        raise ValueError(f"{name} must be one of {allowed}, or a name with cuda, not {figure!r}")
    return figure


def check_operators(
    name: str, operators: Mapping[str, str] | Iterable[str] | None
) -> dict[str, str]:
    """Operators with their figures; names alone get the time on the device itself."""
    if operators is None:
        return {}
    if isinstance(operators, (str, bytes)) or not isinstance(operators, Iterable):
        raise TypeError(f"{name} must map operators to figures, not {operators!r:.100}")
    pairs = (
        operators.items()
        if isinstance(operators, Mapping)
        else ((operator, DEFAULT_FIGURE) for operator in operators)
    )
    found = {}
    for operator, figure in pairs:
        if not isinstance(operator, str):
            raise TypeError(f"{name} must name operators, not {operator!r:.100}")
        found[operator] = check_figure(f"{name}[{operator!r}]", figure, also=())
    return found


# --- figures ---


def operator_table(
    profiler: Any, sort_by: str, row_limit: int, by_shape: bool, stack_frames: int = 0
) -> str:
    """torch's table of operators, without the calls of Python that `with_stack` brings: they
    would be most of them, and are in the stacks."""
    averages = profiler.key_averages(group_by_input_shape=by_shape, group_by_stack_n=stack_frames)
    python = {event.name for event in profiler.events() if is_python_function(event)}
    averages[:] = [each for each in averages if each.key not in python]
    return str(averages.table(sort_by=sort_by, row_limit=row_limit))


def analysis(profiler: Any, operators: Mapping[str, str], calls_max: int) -> dict[str, Any]:
    """What a profiler that was stopped saw of the operators, ready for JSON.

    Times are µs, memory is bytes. A figure of the device is the CPU's where no time on a device
    was seen. Of each operator at most `calls_max` calls are listed, the first ones; the statistics
    are of all.
    """
    calls: dict[str, list[Any]] = {operator: [] for operator in operators}
    on_device = False
    for event in profiler.events() or ():
        is_device = event.device_type.name != "CPU"
        on_device = on_device or (is_device and event.time_range.elapsed_us() > 0)
        if event.name in calls and not is_device:
            calls[event.name].append(event)
    return {
        "has_device_time": on_device,
        "units": {"time": "us", "memory": "bytes"},
        "operators": {
            operator: _of_operator(calls[operator], asked, on_device, calls_max)
            for operator, asked in operators.items()
        },
    }


def _of_operator(
    events: Sequence[Any], asked: str, on_device: bool, calls_max: int
) -> dict[str, Any]:
    figure = on_this_machine(asked, on_device)
    events = sorted(events, key=lambda event: event.time_range.start)
    values = [getattr(event, figure) for event in events]
    groups: dict[str, tuple[Any, list[float]]] = {}
    for event, value in zip(events, values, strict=True):
        groups.setdefault(repr(event.input_shapes), (event.input_shapes, []))[1].append(value)
    by_shape = [
        {"shapes": shapes, "statistics": summarise(found)} for shapes, found in groups.values()
    ]
    return {
        "asked": asked,
        "figure": figure,
        "statistics": summarise(values),
        "by_shape": sorted(by_shape, key=lambda group: -group["statistics"]["total"]),
        "calls": [
            _of_call(event, value) for event, value in zip(events[:calls_max], values, strict=False)
        ],
        "calls_left_out": max(len(events) - calls_max, 0),
    }


def _of_call(event: Any, value: float) -> dict[str, Any]:
    return {
        "start_us": round(event.time_range.start, 3),
        "thread": event.thread,
        "shapes": event.input_shapes,
        "value": round(value, 3),
        "duration_us": round(event.cpu_time_total, 3),
        "self_cpu_us": round(event.self_cpu_time_total, 3),
        "device_us": round(event.device_time_total, 3),
        "self_device_us": round(event.self_device_time_total, 3),
        "stack": list(event.stack or ()),
    }


def summarise(values: Sequence[float]) -> dict[str, float | int | None]:
    """Count, sum, mean, spread of the population, and percentiles: the smallest value that the
    share of all do not exceed. None if there is no value.

    >>> summarise([3.0, 1.0, 2.0, 10.0])["p50"]
    2.0
    """
    count = len(values)
    if not count:
        names = ("mean", "std", "min", "p50", "p90", "p99", "max")
        return {"count": 0, "total": 0, **dict.fromkeys(names)}
    ordered = sorted(values)
    total = math.fsum(ordered)
    mean = total / count
    found = {
        "total": total,
        "mean": mean,
        "std": math.sqrt(math.fsum((value - mean) ** 2 for value in ordered) / count),
        "min": ordered[0],
        **{f"p{q}": ordered[max(math.ceil(q * count / 100), 1) - 1] for q in (50, 90, 99)},
        "max": ordered[-1],
    }
    return {"count": count, **{name: round(value, 3) for name, value in found.items()}}
