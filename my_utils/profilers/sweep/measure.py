"""Measures one point of a sweep: warm-up, repeats, the right clock, and running out of memory.

Internal. torch is used only if the process has imported it already.
"""

from __future__ import annotations

import statistics
import sys
import time
import traceback
from collections.abc import Callable
from typing import Any, Literal

from ..memory.oom_restore import drop_frames, free_caches, is_out_of_memory
from .results import SweepPoint

Device = Literal["auto", "cpu", "cuda"]
DEVICES = ("auto", "cpu", "cuda")


def measure(
    point: SweepPoint, call: Callable[[], Any], warmup: int, repeats: int, device: Device
) -> BaseException | None:
    """Fills in the point. Returns the exception that ended it, for the caller to judge.

    When `call` returns a callable, that is what is timed, and `call` its preparation.
    """
    around = sys.exception()
    try:
        _measure(point, call, warmup, repeats, device)
    except Exception as error:
        lines = str(error).strip().splitlines()
        point.error = f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
        point.status = "oom" if is_out_of_memory(error) else "error"
        if point.status == "error":
            return error
        # The frames hold the tensors that did not fit, and what they were made of.
        traceback.clear_frames(error.__traceback__)
        drop_frames(error, around)
        failure = error
    else:
        return None
    free_caches()  # what the failed point still holds would fail the next ones, too
    return failure


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
