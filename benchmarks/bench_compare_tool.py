"""What the comparison tools add to an operator and to a step of the demo's model.

The peers are modes of the same kind that do the least there is to do: one that only passes each
operator on, and one that runs each operator twice. Both are as a user writes them; the one that
passes on is also measured without what torch wraps around the modes of its users to keep its
compiler out of them, which the tools do in another way.

Times are those of the processor in the training's thread, which a busy machine spoils less.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks.bench_compare import Work, medians_ms
from benchmarks.harness import Claim
from my_utils.cli.demo_gpt import GPT, own_shard, read_texts, tensors
from my_utils.compare_tool import CompareWithCPU, NanInfTracker, open_module_tracker
from my_utils.profilers.operators.log import OpLog
from my_utils.profilers.operators.module_path import where
from my_utils.utils import MyTimer

OPS = 200


class Empty(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


class EmptyUnwrapped(Empty):
    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


class Twice(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        func(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))


Mode = AbstractContextManager[Any]


def op_sides(folder: Path) -> dict[str, Mode]:
    return {
        "alone": nullcontext(),
        "empty": Empty(),  # type: ignore[no-untyped-call]
        "unwrapped": EmptyUnwrapped(),  # type: ignore[no-untyped-call]
        "twice": Twice(),  # type: ignore[no-untyped-call]
        "white": CompareWithCPU(white_list=["add"], verbose=False, **_quiet(folder / "w")),
        "filtered": CompareWithCPU(target_list=["mul"], verbose=False, **_quiet(folder / "f")),
        "nan": NanInfTracker(**_quiet(folder / "n")),
        "compare": CompareWithCPU(verbose=False, **_quiet(folder / "c")),
    }


def _quiet(folder: Path) -> dict[str, Any]:
    return {"should_log_to_file": True, "output_dir": folder}


def microseconds_an_op(folder: Path, rounds: int) -> dict[str, float]:
    """Of `a + b` of 8 elements. Entering and leaving the mode is not timed."""
    a, b = torch.ones(8), torch.ones(8)
    times: dict[str, list[float]] = {}
    sides = op_sides(folder)
    for _ in range(rounds):
        for name, mode in sides.items():
            with mode:
                a + b
                a * b  # a block in which nothing is compared ends as an error
                began = time.thread_time_ns()
                for _ in range(OPS):
                    a + b
                times.setdefault(name, []).append((time.thread_time_ns() - began) / OPS / 1e3)
    return {name: statistics.median(values) for name, values in times.items()}


def microseconds_a_line(folder: Path, rounds: int) -> float:
    """What the training's thread pays for the lines of one operator while a thread writes them."""
    log = OpLog(folder / "lines.log")
    log.open()
    title = "GPT/Block/Linear[blocks.0.qkv]/torch.ops.aten.addmm(forward)"
    times = []
    for _ in range(rounds):
        began = time.thread_time_ns()
        for _ in range(OPS):
            log.line(title, " starts to run ...\n", title, " succeeds to pass the test")
        times.append((time.thread_time_ns() - began) / OPS / 1e3)
        time.sleep(0.002)
    log.close()
    return statistics.median(times)


def step_of(model: GPT, batch: Any) -> Callable[[Mode], Callable[[], None]]:
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)

    def step() -> None:
        model(*batch).backward()
        optimizer.step()
        optimizer.zero_grad()

    def under(mode: Mode) -> Callable[[], None]:
        def run() -> None:
            with mode:
                step()

        return run

    step()
    return under


def milliseconds_a_step(folder: Path, rounds: int) -> dict[str, float]:
    torch.manual_seed(0)
    model = GPT(MyTimer(tag="bench"))
    batch = tensors(next(own_shard(read_texts(1 << 19), 1, 2)), torch.device("cpu"))
    under = step_of(model, batch)
    modes = op_sides(folder)
    sides: dict[str, Work] = {
        name: under(modes[name]) for name in ("empty", "twice", "nan", "compare")
    }
    with open_module_tracker(model):
        return medians_ms(sides, time.thread_time_ns, rounds)


class Nest(torch.nn.Module):
    def __init__(self, depth: int, work: Callable[[], None]) -> None:
        super().__init__()
        self.work = work
        self.inner = Nest(depth - 1, work) if depth > 1 else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.inner is not None:
            inner: torch.Tensor = self.inner(x)
            return inner
        self.work()
        return x


def nanoseconds_a_path(depths: tuple[int, int], rounds: int) -> dict[str, float]:
    """What the log asks for at each operator, in the innermost module: the module's path."""
    times: dict[str, list[float]] = {str(depth): [] for depth in depths}
    name = ""

    def work() -> None:
        began = time.perf_counter_ns()
        for _ in range(OPS):
            _ = where().text
        times[name].append((time.perf_counter_ns() - began) / OPS)

    models = {str(depth): Nest(depth, work) for depth in depths}
    trackers = [open_module_tracker(model) for model in models.values()]
    try:
        for _ in range(rounds):
            for name, model in models.items():  # noqa: B007 - read by work
                model(torch.ones(1))
    finally:
        for tracker in trackers:
            tracker.close()
    return {name: statistics.median(values) for name, values in times.items()}


def run(smoke: bool) -> list[Claim]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with tempfile.TemporaryDirectory() as folder:
            op = microseconds_an_op(Path(folder), 2 if smoke else 41)
            lines = microseconds_a_line(Path(folder), 3 if smoke else 501)
            step = milliseconds_a_step(Path(folder), 1 if smoke else 11)
        path = nanoseconds_a_path((2, 20), 3 if smoke else 101)
    finally:
        torch.set_num_threads(threads)
    return [
        Claim("a white-listed op", op["white"], "an empty mode", op["empty"], "us", 1.3),
        Claim("a filtered op", op["filtered"], "an empty mode", op["empty"], "us", 1.3),
        Claim("a white-listed op", op["white"], "one unwrapped", op["unwrapped"], "us", 1.3),
        Claim("NanInfTracker, 8 elements", op["nan"], "an empty mode", op["empty"], "us", 1.6),
        Claim("NanInfTracker, 8 elements", op["nan"], "one unwrapped", op["unwrapped"], "us", 1.6),
        Claim("NanInfTracker, demo step", step["nan"], "an empty mode", step["empty"], "ms", 1.2),
        Claim("CompareWithCPU, demo step", step["compare"], "ops twice", step["twice"], "ms", 1.4),
        Claim("CompareWithCPU, 8 elements", op["compare"], "ops twice", op["twice"], "us", 10),
        Claim("two lines for an op, to a file", lines, "2 us", 2, "us", 1),
        Claim("path of a module at depth 20", path["20"], "depth 2", path["2"], "ns", 1.3),
    ]
