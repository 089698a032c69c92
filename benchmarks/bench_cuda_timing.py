"""What GPU times of a stage cost the thread that trains: against two `torch.cuda.Event.record()`.

The peer is what one writes by hand: a pair of events around the stage, and `elapsed_time` of each
pair once the step is over. Both sides enqueue the same small kernel inside the stage; a bare one
is timed too and taken off both. Our step() also writes the rows of the stages to the CSV. Where
there is no GPU nothing is measured.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable
from typing import Any

from benchmarks.harness import Claim, Row, without_gpu
from my_utils import _core

STAGES = 12
"""Of a step, as in the other benchmarks of steps."""


class Sides:
    """A step of each side; what it returns is ns of the stages and ns of the step's end."""

    def __init__(self) -> None:
        import torch

        self.torch = torch
        self.x = torch.zeros(1024, device="cuda")
        self.timer = _core.Timer(use_cuda=True)
        self.names = [f"stage_{number}" for number in range(STAGES)]

    def bare(self) -> tuple[int, int]:
        began = time.perf_counter_ns()
        for _ in self.names:
            self.x.add_(1)
        ended = time.perf_counter_ns()
        self.torch.cuda.synchronize()
        return ended - began, 0

    def ours(self) -> tuple[int, int]:
        timer, x = self.timer, self.x
        began = time.perf_counter_ns()
        for name in self.names:
            timer.start(name)
            x.add_(1)
            timer.stop(name)
        enqueued = time.perf_counter_ns()
        self.torch.cuda.synchronize()
        done = time.perf_counter_ns()
        timer.step()
        return enqueued - began, time.perf_counter_ns() - done

    def events(self) -> tuple[int, int]:
        event: Any = self.torch.cuda.Event
        x, pairs = self.x, []
        began = time.perf_counter_ns()
        for _ in self.names:
            before, after = event(enable_timing=True), event(enable_timing=True)
            before.record()
            x.add_(1)
            after.record()
            pairs.append((before, after))
        enqueued = time.perf_counter_ns()
        self.torch.cuda.synchronize()
        done = time.perf_counter_ns()
        for before, after in pairs:
            before.elapsed_time(after)
        return enqueued - began, time.perf_counter_ns() - done


def medians(sides: dict[str, Callable[[], tuple[int, int]]], rounds: int) -> dict[str, list[float]]:
    """In turns; us a stage inside the step, and us of the step's end."""
    found: dict[str, list[tuple[int, int]]] = {name: [] for name in sides}
    for _ in range(rounds):
        for name, step in sides.items():
            found[name].append(step())
    return {
        name: [statistics.median(figure) / 1e3 for figure in zip(*taken, strict=True)]
        for name, taken in found.items()
    }


def run(smoke: bool) -> list[Row]:
    if missing := without_gpu("stages timed on a GPU"):
        return missing
    with tempfile.TemporaryDirectory() as folder:
        _core.open_output(log_dir=folder)
        try:
            sides = Sides()
            steps = {"bare": sides.bare, "ours": sides.ours, "events": sides.events}
            medians(steps, 20)  # the first events are created, and the clocks are lined up
            found = medians(steps, 20 if smoke else 2000)
        finally:
            _core.close_output()
    (bare, _), ours, events = found["bare"], found["ours"], found["events"]
    return [
        Claim("start/stop with GPU times", (ours[0] - bare) / STAGES, "two Event.record()",
              (events[0] - bare) / STAGES, "us", 1.0),
        Claim(f"step() of {STAGES} stages that are done", ours[1], "elapsed_time of each",
              events[1], "us", 3.0),
    ]  # fmt: skip
