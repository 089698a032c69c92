"""What a profiled function pays for reporting itself, with nothing armed and with a window that
waits for something else.

The peer is the same controller written in Python, as training frameworks have it: a dataclass for
the event, and a method that compares it with the armed windows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from benchmarks.harness import Claim, take_turns
from my_utils import _core
from my_utils.profiling.backends import NoOpBackend
from my_utils.profiling.capture_controller import CaptureController, HookEvent

CALLS = 5000
META = {"iter": 3, "microbatch_index": 0}


@dataclass
class PlainEvent:
    profile_name: str
    meta: dict[str, Any] = field(default_factory=dict)
    role: str | None = None
    rank: int | None = None


class PlainController:
    """The peer."""

    def __init__(self) -> None:
        self.windows: list[dict[str, Any]] = []

    def on_enter(self, event: PlainEvent) -> None:
        for window in self.windows:
            if event.profile_name not in window["start_profile_names"]:
                continue
            if event.meta.get("iter") == window["start_iter"]:
                raise AssertionError("the benchmark's windows never open")


WINDOW = {"window_id": "w", "start_profile_names": ["critic.forward"], "start_iter": 10}


def loop() -> None:
    for _ in range(CALLS):
        pass


def empty_calls() -> Callable[[], None]:
    """An empty C method with one argument."""
    call = _core.NoOpTimer().set_step

    def repeat() -> None:
        for _ in range(CALLS):
            call(1)

    return repeat


def same_calls() -> Callable[[], None]:
    """Empty C methods with the arguments that ours take: four keywords, and what that returns."""
    timer = _core.NoOpTimer()
    make: Callable[..., Any] = timer.start
    take: Callable[[Any], None] = timer.set_step

    def repeat() -> None:
        for _ in range(CALLS):
            take(make(profile_name="generator.forward", meta=META, role="g", rank=0))

    return repeat


def ours(armed: bool) -> Callable[[], None]:
    controller = CaptureController(NoOpBackend())
    if armed:
        controller.arm(WINDOW)
    on_enter = controller.on_enter

    def repeat() -> None:
        for _ in range(CALLS):
            on_enter(HookEvent(profile_name="generator.forward", meta=META, role="g", rank=0))

    return repeat


def plain(armed: bool) -> Callable[[], None]:
    controller = PlainController()
    if armed:
        controller.windows.append(WINDOW)
    on_enter = controller.on_enter

    def repeat() -> None:
        for _ in range(CALLS):
            on_enter(PlainEvent(profile_name="generator.forward", meta=META, role="g", rank=0))

    return repeat


def run(smoke: bool) -> list[Claim]:
    sides = {
        "loop": loop,
        "empty": empty_calls(),
        "same calls": same_calls(),
        "disarmed": ours(False),
        "armed": ours(True),
        "plain disarmed": plain(False),
        "plain armed": plain(True),
    }
    times = take_turns(sides, calls=CALLS, rounds=3 if smoke else 41)
    base = times.pop("loop")
    ns = {name: value - base for name, value in times.items()}
    return [
        Claim("on_enter(HookEvent), disarmed", ns["disarmed"], "an empty C call", ns["empty"],
              "ns", 3),
        Claim("on_enter(HookEvent), disarmed", ns["disarmed"], "two empty C calls, same arguments",
              ns["same calls"], "ns", 3),
        Claim("on_enter(HookEvent), armed", ns["armed"], "200 ns", 200, "ns", 1),
        Claim("on_enter(HookEvent), disarmed", ns["disarmed"], "in Python",
              ns["plain disarmed"], "ns", 1, faster=True),
        Claim("on_enter(HookEvent), armed", ns["armed"], "in Python", ns["plain armed"], "ns", 1,
              faster=True),
    ]  # fmt: skip
