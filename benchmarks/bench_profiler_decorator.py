"""What `step_profiler()` adds to a step outside the windows of `@profiler`, and outside of profiled
functions, against other profilers that wait for their window.

Each side runs a whole loop of steps with nothing in them; the empty loop is taken off.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from typing import Any

import torch

from benchmarks.harness import Claim, take_turns
from my_utils.profiling.decorator import profiler, step_profiler

STEPS = 5000
LATER = 10**9  # a step that no run comes to


def loop() -> None:
    for _ in range(STEPS):
        pass


def stepped() -> None:
    for _ in range(STEPS):
        step_profiler()


def plain_torch() -> Callable[[], None]:
    """torch's own schedule, which its users step through the whole run."""

    def repeat() -> None:
        schedule = torch.profiler.schedule(wait=LATER, warmup=1, active=1)
        with torch.profiler.profile(schedule=schedule) as profile:
            for _ in range(STEPS):
                profile.step()

    return repeat


def lightning() -> Callable[[], None] | None:
    """As Lightning's Trainer calls its PyTorchProfiler round each training step.

    That also sets metadata at each step, which torch, when no window is open, answers with a
    message to stderr: left out here, in the peer's favour.
    """
    try:
        from lightning.pytorch.profilers import PyTorchProfiler
    except ImportError:
        return None

    def repeat() -> None:
        schedule = torch.profiler.schedule(wait=LATER, warmup=1, active=1)
        waiting: Any = PyTorchProfiler(schedule=schedule)
        waiting._create_profilers()
        waiting.profiler.add_metadata = lambda *_: None
        for _ in range(STEPS):
            with waiting.profile("[Strategy]SingleDeviceStrategy.training_step"):
                pass
        waiting.profiler = None  # its teardown wants events, and there are none

    return repeat


def run(smoke: bool) -> list[Claim]:
    with tempfile.TemporaryDirectory() as folder:
        sides: dict[str, Callable[[], object]] = {
            "loop": loop,
            "outside": stepped,
            "waiting": profiler(output_dir=folder, skip_first=LATER)(stepped),
            "torch": plain_torch(),
        }
        other = lightning()
        if other is not None:
            sides["lightning"] = other
        times = take_turns(sides, calls=STEPS, rounds=3 if smoke else 21)
    base = times.pop("loop")
    ns = {name: value - base for name, value in times.items()}
    claims = [
        Claim("a step outside the windows of @profiler", ns["waiting"], "2 µs", 2000, "ns", 1),
        Claim("step_profiler() outside profiled functions", ns["outside"], "100 ns", 100, "ns", 1),
        Claim("a step outside the windows of @profiler", ns["waiting"], "torch's own schedule",
              ns["torch"], "ns", 10, faster=True),
    ]  # fmt: skip
    if "lightning" in ns:
        claims.append(
            Claim("a step outside the windows of @profiler", ns["waiting"],
                  "Lightning's PyTorchProfiler", ns["lightning"], "ns", 10, faster=True)
        )  # fmt: skip
    return claims
