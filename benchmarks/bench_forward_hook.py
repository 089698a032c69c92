"""What a module's forward pass pays for a profiler hook outside its window, and a function for a
capture hook to which nobody listens.

The peers are what one would write in Python: a hook that is empty, and one that counts.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from benchmarks.harness import Claim, take_turns
from my_utils.ForwardProfileHook import ForwardProfilerHook
from my_utils.profiling.backends import NoOpBackend
from my_utils.profiling.capture_controller import capture_hook

CALLS = 2000


class Nothing(torch.nn.Module):
    def forward(self) -> None:
        pass


def empty_hook(module: object, args: object, output: object) -> None:
    pass


class Counting:
    """The peer: a pair of hooks that toggles a profiler."""

    def __init__(self, start: int, stop: int) -> None:
        self.start = start
        self.stop = stop
        self.passes = 0
        self.depth = 0

    def before(self, module: object, args: object) -> None:
        self.depth += 1
        if self.depth == 1:
            if self.passes == self.start or self.passes == self.stop:
                raise AssertionError("the benchmark's window never opens")
            self.passes += 1

    def after(self, module: object, args: object, output: object) -> None:
        self.depth -= 1


def passes_of(module: torch.nn.Module) -> Callable[[], None]:
    def repeat() -> None:
        for _ in range(CALLS):
            module()

    return repeat


def empty() -> Callable[[], None]:
    module = Nothing()
    module.register_forward_hook(empty_hook)
    return passes_of(module)


def counting() -> Callable[[], None]:
    module = Nothing()
    hooks = Counting(2**40, 2**41)
    module.register_forward_pre_hook(hooks.before)
    module.register_forward_hook(hooks.after, always_call=True)
    return passes_of(module)


def ours() -> Callable[[], None]:
    module = Nothing()
    hook = ForwardProfilerHook(2**40, 2**41, backend=NoOpBackend()).attach(module)

    def repeat(hook: ForwardProfilerHook = hook) -> None:  # which keeps the hook
        for _ in range(CALLS):
            module()

    return repeat


def work() -> None:
    pass


def calls_of(function: Callable[[], None]) -> Callable[[], None]:
    def repeat() -> None:
        for _ in range(CALLS):
            function()

    return repeat


def run(smoke: bool) -> list[Claim]:
    sides = {
        "bare": passes_of(Nothing()),
        "empty": empty(),
        "counting": counting(),
        "ours": ours(),
        "work": calls_of(work),
        "marked": calls_of(capture_hook("work")(work)),
        "recorded": calls_of(torch.profiler.record_function("work")(work)),
    }
    times = take_turns(sides, calls=CALLS, rounds=3 if smoke else 41)
    added = {name: times[name] - times["bare"] for name in ("empty", "counting", "ours")}
    marked, recorded = (times[name] - times["work"] for name in ("marked", "recorded"))
    return [
        Claim("ForwardProfilerHook, outside its window", added["ours"], "an empty module hook",
              added["empty"], "ns", 2),
        Claim("ForwardProfilerHook, outside its window", added["ours"], "in Python",
              added["counting"], "ns", 1, faster=True),
        Claim("@capture_hook, no controller", marked, "record_function, no profiler",
              recorded, "ns", 5, faster=True),
    ]  # fmt: skip
