"""Tensors on a GPU: how close hash, statistics and counts come to the memory's bandwidth.

The measure is half the time of a copy on the device, which reads and writes what they only read.
Times are the GPU's own, between two events. Where there is no GPU nothing is measured.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable

from benchmarks.harness import Claim, Row, without_gpu

ROUNDS = 30


def gpu_milliseconds(work: Callable[[], object]) -> float:
    """Median of several runs, each alone on the GPU."""
    import torch

    times: list[float] = []
    for _ in range(ROUNDS):
        began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        began.record()
        work()
        ended.record()
        torch.cuda.synchronize()
        times.append(began.elapsed_time(ended))
    return float(statistics.median(times))


def run(smoke: bool) -> list[Row]:
    if missing := without_gpu("tensors on a GPU"):
        return missing
    import torch

    import my_utils.torch_ops  # noqa: F401

    operators = torch.ops.my_utils
    x = torch.randn((1 << 24) if smoke else (1 << 28), device="cuda")
    copy = torch.empty_like(x)
    row = torch.zeros(1, 2, dtype=torch.int64, device="cuda")
    sides: dict[str, Callable[[], object]] = {
        "copy": lambda: copy.copy_(x),
        "hash": lambda: operators.hash_into(x, row, 0),
        "nan_inf_count": lambda: operators.nan_inf_count(x),
        "stats": lambda: operators.stats(x),
    }
    for work in sides.values():
        work()  # compiles, and takes its memory
    times = {name: gpu_milliseconds(work) for name, work in sides.items()}
    read = times["copy"] / 2
    size = f"{x.nbytes / 2**30:g} GiB of float32 on a GPU"
    bounds = {"hash": 1 / 0.7, "nan_inf_count": 1 / 0.7, "stats": 4.0}
    return [
        Claim(f"{name}, {size}", times[name], "half a copy there", read, "ms", bound)
        for name, bound in bounds.items()
    ]
