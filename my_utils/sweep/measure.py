"""Measures one point of a sweep: warm-up, repeats, the right clock, and running out of memory.

Internal. torch is used only if the process has imported it already.
"""

from __future__ import annotations

import gc
import inspect
import itertools
import statistics
import sys
import time
import traceback
from collections.abc import Callable, Iterable
from typing import Any, Literal

from ..common.arguments import check_int
from ..memory.out_of_memory import is_out_of_memory
from .results import Shape, SweepPoint

Device = Literal["auto", "cpu", "cuda"]
DEVICES = ("auto", "cpu", "cuda")


def measure(
    point: SweepPoint, call: Callable[[], Any], warmup: int, repeats: int, device: Device
) -> BaseException | None:
    """Fills in the point. Returns the exception that ended it, for the caller to judge.

    When `call` returns a callable, that is what is timed, and `call` its preparation.
    """
    try:
        _measure(point, call, warmup, repeats, device)
    except Exception as error:
        point.status = "oom" if is_out_of_memory(error) else "error"
        point.error = _first_line(error)
        if point.status == "error":
            return error
        # The frames hold the tensors that did not fit, and what they were made of.
        traceback.clear_frames(error.__traceback__)
        failure: BaseException | None = error.with_traceback(None)
    else:
        return None
    _give_memory_back()
    return failure


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


def _measure(
    point: SweepPoint, call: Callable[[], Any], warmup: int, repeats: int, device: Device
) -> None:
    began = time.perf_counter_ns()
    timed = call()
    first_ms = (time.perf_counter_ns() - began) / 1e6
    if not callable(timed):
        if warmup == 0 and not _on_cuda(device):
            _fill_in(point, [first_ms, *_cpu_times(call, repeats - 1)], "cpu")
            return
        timed, warmup = call, max(warmup - 1, 0)
    for _ in range(warmup):
        timed()
    if _on_cuda(device):
        _fill_in(point, _cuda_times(point, timed, repeats), "cuda")
    else:
        _fill_in(point, _cpu_times(timed, repeats), "cpu")


def _on_cuda(device: Device) -> bool:
    """ "auto": on the GPU once the process uses it, which the first call has shown."""
    if device != "auto":
        return device == "cuda"
    torch = sys.modules.get("torch")
    return torch is not None and bool(torch.cuda.is_initialized())


def _cpu_times(call: Callable[[], Any], repeats: int) -> list[float]:
    times = []
    for _ in range(repeats):
        began = time.perf_counter_ns()
        call()
        times.append((time.perf_counter_ns() - began) / 1e6)
    return times


def _cuda_times(point: SweepPoint, call: Callable[[], Any], repeats: int) -> list[float]:
    """By events on the current stream; the GPU is waited for before and after, not between."""
    import torch

    events = [
        (torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True))
        for _ in range(repeats)
    ]
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    for start, end in events:
        start.record()
        call()
        end.record()
    torch.cuda.synchronize()
    point.peak_bytes = torch.cuda.max_memory_allocated()
    return [float(start.elapsed_time(end)) for start, end in events]


def _fill_in(point: SweepPoint, times: list[float], clock: str) -> None:
    point.clock, point.repeats = clock, len(times)
    point.median_ms = statistics.median(times)
    point.min_ms, point.max_ms = min(times), max(times)
    point.p25_ms = point.p75_ms = point.median_ms
    if len(times) > 1:
        point.p25_ms, _, point.p75_ms = statistics.quantiles(times, n=4, method="inclusive")


def _give_memory_back() -> None:
    """What the failed point still holds would fail the next ones, too."""
    gc.collect()
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        torch.cuda.empty_cache()


# --- arguments ---


def checked_shapes(shapes: Iterable[Any] | None) -> list[Shape] | None:
    if shapes is None:
        return None
    if isinstance(shapes, (str, bytes)) or not isinstance(shapes, Iterable):
        raise TypeError(f"shapes={shapes!r}: pass a list of integers and tuples of integers")
    found = [_checked_shape(shape) for shape in shapes]
    if not found:
        raise ValueError("shapes is empty; at least one is wanted, or None for no shapes")
    return found


def _checked_shape(shape: Any) -> Shape:
    if isinstance(shape, int) and not isinstance(shape, bool):
        if shape < 0:
            raise ValueError(f"shapes: {shape} is negative")
        return shape
    if isinstance(shape, (tuple, list)):
        return tuple(_checked_shape(part) for part in shape)
    raise TypeError(f"shapes: {shape!r} is neither an integer nor a tuple of integers")


def checked_batch_sizes(batch_sizes: Iterable[Any] | None) -> list[int] | None:
    if batch_sizes is None:
        return None
    if isinstance(batch_sizes, (str, bytes)) or not isinstance(batch_sizes, Iterable):
        raise TypeError(f"batch_sizes={batch_sizes!r}: pass a list of integers")
    found = list(batch_sizes)
    if not found:
        raise ValueError("batch_sizes is empty; at least one is wanted, or None for no batches")
    for size in found:
        check_int("each of batch_sizes", size, 1)
    return found


def check_function(function: Any, names: tuple[str, ...]) -> None:
    """Raises TypeError unless `function` can be called with `names` as keywords, and timed."""
    if not inspect.isfunction(function):
        raise TypeError(f"parametrize_shapes decorates functions, not {function!r}")
    if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
        raise TypeError(f"{function.__qualname__} is asynchronous; its call does no work to time")
    if inspect.isgeneratorfunction(function):
        raise TypeError(f"{function.__qualname__} is a generator; its call does no work to time")
    parameters = inspect.signature(function).parameters
    takes_all = any(each.kind is each.VAR_KEYWORD for each in parameters.values())
    for name in names:
        found = parameters.get(name)
        if not takes_all and (found is None or found.kind is found.POSITIONAL_ONLY):
            raise TypeError(f"{function.__qualname__} takes no argument {name!r}")


def combinations(
    shapes: list[Shape] | None, batch_sizes: list[int] | None
) -> list[tuple[Shape | None, int | None]]:
    """Every shape with every batch size, a shape at a time."""
    return list(itertools.product(shapes or [None], batch_sizes or [None]))  # type: ignore[list-item]
