"""What a timed stage costs: start and stop, ``with``, and the timer that is off.

The peers are what users put round a stage today. All sides run the same loop, whose own cost is
taken off each of them.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from benchmarks.harness import Claim, take_turns
from my_utils import _core

CALLS = 2000


class BenchTimer(_core.Timer):
    __slots__ = ()


class BenchNoOp(_core.NoOpTimer):
    __slots__ = ()


def loop() -> None:
    for _ in range(CALLS):
        pass


def perf_counters() -> None:
    clock = time.perf_counter
    for _ in range(CALLS):
        clock()
        clock()


def pairs(timer: _core.Timer | _core.NoOpTimer) -> Callable[[], None]:
    def run() -> None:
        for _ in range(CALLS):
            timer.start("forward")
            timer.stop("forward")

    return run


def stages(timer: _core.Timer) -> Callable[[], None]:
    def run() -> None:
        for _ in range(CALLS):
            with timer.time_stage("forward"):
                pass

    return run


def empty_methods() -> None:
    """Of the C methods with one argument, list.count of an empty list does the least."""
    nothing: list[str] = []
    for _ in range(CALLS):
        nothing.count("forward")
        nothing.count("forward")


def slow_peers() -> dict[str, Callable[[], object]]:
    """Peers that cost so much more that fewer rounds do."""
    import codetiming
    import nvtx
    import torch

    code_timer = codetiming.Timer("forward", logger=None)

    def with_codetiming() -> None:
        for _ in range(CALLS):
            code_timer.start()
            code_timer.stop()

    def with_nvtx() -> None:
        for _ in range(CALLS):
            with nvtx.annotate("forward"):
                pass

    def with_record_function() -> None:
        for _ in range(CALLS):
            with torch.profiler.record_function("forward"):
                pass

    return {
        "codetiming": with_codetiming,
        "nvtx.annotate": with_nvtx,
        "record_function": with_record_function,
    }


def viztracer_event(rounds: int) -> float:
    """ns a ``log_event``. Measured last: a VizTracer slows every call of C in the process."""
    from viztracer import VizTracer

    tracer = VizTracer(verbose=0, log_sparse=True)

    def with_viztracer() -> None:
        for _ in range(CALLS):
            with tracer.log_event("forward"):
                pass

    return take_turns({"log_event": with_viztracer}, calls=CALLS, rounds=rounds)["log_event"]


BOUNDS = {
    "codetiming": 4.0,
    "nvtx.annotate": 4.0,
    "viztracer log_event": 15.0,
    "record_function": 40.0,
}


def run(smoke: bool) -> list[Claim]:
    _core.open_output(kind="null")
    timer, off = BenchTimer(), BenchNoOp()
    sides: dict[str, Callable[[], object]] = {
        "loop": loop,
        "start/stop": pairs(timer),
        "with": stages(timer),
        "two perf_counter()": perf_counters,
        "no-op": pairs(off),
        "two empty C methods": empty_methods,
    }
    figures = take_turns(sides, calls=CALLS, rounds=3 if smoke else 301, between=timer.step)
    base = figures.pop("loop")
    figures = {name: value - base for name, value in figures.items()}
    claims = [
        Claim("start/stop, recorded in the journal", figures["start/stop"], "two perf_counter()",
              figures["two perf_counter()"], "ns", 0.8),
        Claim("with time_stage(), recorded", figures["with"], "two perf_counter()",
              figures["two perf_counter()"], "ns", 1.6),
        Claim("no-op timer, start/stop", figures["no-op"], "two empty C methods",
              figures["two empty C methods"], "ns", 1.2),
    ]  # fmt: skip
    try:
        peers = slow_peers()
    except ImportError as error:
        print(f"peers left out: {error}")
        return claims
    rounds = 1 if smoke else 21
    slow = take_turns(
        {"start/stop": pairs(timer), **peers}, calls=CALLS, rounds=rounds, between=timer.step
    )
    ours = slow.pop("start/stop")
    slow["viztracer log_event"] = viztracer_event(rounds)
    for name, value in slow.items():
        claims.append(Claim("start/stop", ours, name, value, "ns", BOUNDS[name], faster=True))
    return claims
