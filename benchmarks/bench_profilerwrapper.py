"""What ProfilerWrapper adds to torch's profiler, and what a block pays that nobody profiles.

An entry is a few hundred small operators; its peer is the same under `torch.profiler.profile` with
the same options. Their figures have a peer as well: torch's own `events()`, which is how one would
get them otherwise.
"""

from __future__ import annotations

import contextlib
import functools
import os
import tempfile
from collections.abc import Callable

import torch

from benchmarks.harness import Claim, take_turns
from my_utils.DITProfiler import create_profiler_context
from my_utils.profilerwrapper import ProfilerWrapper

OPERATORS = 600
CALLS = 5000


def work() -> None:
    x = torch.ones(32, 32)
    for _ in range(OPERATORS // 2):
        x = torch.relu(x + x)


def wrapped(folder: str, leaving: contextlib.ExitStack, **options: bool) -> Callable[[], None]:
    pw = ProfilerWrapper(output=folder, **options)  # type: ignore[arg-type]
    leaving.callback(pw.leave)

    def entry() -> None:
        with pw:
            work()

    return entry


def bare(read: bool = False, profile_memory: bool = False) -> Callable[[], None]:
    def entry() -> None:
        with torch.profiler.profile(profile_memory=profile_memory) as profiler:
            work()
        if read:
            sum(event.self_cpu_time_total for event in profiler.events() or ())

    return entry


def entries(rounds: int) -> dict[str, float]:
    """Milliseconds an entry."""
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as leaving:
        wrap = functools.partial(wrapped, folder, leaving)
        sides = {
            "bare": bare(),
            "trace": wrap(),
            "bare, read": bare(read=True),
            "times": wrap(enabled_record_cuda_average_time=True),
            "bare, memory": bare(profile_memory=True),
            "memory": wrap(enabled_record_cuda_average_time=True, profile_memory=True),
        }
        times = take_turns(sides, calls=1, rounds=rounds)
    return {name: ns / 1e6 for name, ns in times.items()}


def repeated(make: Callable[[], contextlib.AbstractContextManager[object]]) -> Callable[[], None]:
    def repeat() -> None:
        for _ in range(CALLS):
            with make():
                pass

    return repeat


def unprofiled(rounds: int) -> dict[str, float]:
    """Nanoseconds a block."""
    off = ProfilerWrapper(enabled=False)
    os.environ.pop("PROFILE_TASK_TYPES", None)
    null = repeated(lambda: contextlib.nullcontext())
    context = repeated(lambda: create_profiler_context("DIT", None))
    unset = {"nullcontext": null, "context": context, "wrapper": repeated(lambda: off)}
    times = take_turns(unset, calls=CALLS, rounds=rounds)
    os.environ["PROFILE_TASK_TYPES"] = "VAE,text"
    listed = take_turns({"null": null, "listed": context}, calls=CALLS, rounds=rounds)
    del os.environ["PROFILE_TASK_TYPES"]
    return times | listed


def run(smoke: bool) -> list[Claim]:
    torch.set_num_threads(1)
    work()
    ms = entries(3 if smoke else 31)
    ns = unprofiled(3 if smoke else 31)
    null = ns["nullcontext"]
    return [
        Claim("with pw, trace", ms["trace"], "torch.profiler.profile", ms["bare"], "ms", 1.25),
        Claim("with pw, times", ms["times"], "torch.profiler.profile", ms["bare"], "ms", 2),
        Claim("with pw, times", ms["times"], "profile, events()", ms["bare, read"], "ms", 2,
              faster=True),
        Claim("with pw, times and memory", ms["memory"], "profile(profile_memory=True)",
              ms["bare, memory"], "ms", 2.5),
        Claim("disabled with pw", ns["wrapper"], "nullcontext()", null, "ns", 2),
        Claim("create_profiler_context, unset", ns["context"], "nullcontext()", null, "ns", 3),
        Claim("the same, other tasks listed", ns["listed"], "nullcontext()", ns["null"], "ns", 3),
    ]  # fmt: skip
