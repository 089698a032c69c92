"""@profiler as a user meets it: the steps recorded, the files, the table, kinds of function."""

from __future__ import annotations

import argparse
import asyncio
import contextvars
import inspect
import json
import os
import re
import sys
import threading
from collections.abc import AsyncIterator, Generator, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="torch is not installed")
import torch

from my_utils.core import warnings as _warnings
from my_utils.csv2trace import csv_to_trace
from my_utils.profilers.torch_profiler import slot as _slot
from my_utils.profiling.decorator import (
    add_profiler_args,
    profiler,
    profiler_options,
    step_profiler,
)

from ...clients.perfetto import TraceProcessor, why_missing
from ...conftest import RunPython

pytestmark = pytest.mark.long_file


@pytest.fixture(autouse=True)
def warn_anew() -> Iterator[None]:
    yield
    for kind in list(_warnings.counts()):
        if "profiler" in kind:
            _warnings.forget(kind)
    assert _slot.holder() is None


def work(step: int = 0) -> None:
    with torch.profiler.record_function(f"mark{step}"):
        torch.ones(8, 4) @ torch.ones(4, 2)


def loop(steps: int) -> None:
    for step in range(steps):
        work(step)
        step_profiler()


def content(trace: Path) -> dict[str, Any]:
    read: dict[str, Any] = json.loads(trace.read_bytes())
    return read


def marks(trace: Path) -> list[int]:
    """The steps whose work a trace holds; the profiler's may have one more, which was cut off."""
    events = content(trace)["traceEvents"]  # on a GPU each mark is there as the GPU saw it, too
    names = [event["name"] for event in events if event.get("cat") != "gpu_user_annotation"]
    found = sorted(int(name[4:]) for name in names if re.fullmatch(r"mark\d+", name))
    steps = sorted({int(name[13:]) for name in names if name.startswith("ProfilerStep#")})
    assert steps[: len(found)] == found and len(steps) <= len(found) + 1
    return found


def board(folder: Path, rank: int = 0) -> list[Path]:
    """The traces for TensorBoard, in the order in which they were written."""
    return sorted((folder / f"rank_{rank}").iterdir(), key=lambda path: path.name.rsplit(".", 4)[1])


# --- files and steps ---


def test_defaults(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)

    @profiler()
    def train(steps: int) -> str:
        """Trains."""
        loop(steps)
        return "done"

    assert (train(9), train.__name__, train.__doc__) == ("done", "train", "Trains.")
    folder = tmp_path / "profiler_logs"
    assert sorted(os.listdir(folder)) == ["rank_0", "trace_rank_0.json"]
    (trace,) = board(folder)
    # The plugin of TensorBoard takes the worker and the span out of the name by this.
    assert re.fullmatch(r".+_\d+\.\d+\.pt\.trace\.json", trace.name)
    assert marks(trace) == [3, 4, 5]
    assert (folder / "trace_rank_0.json").read_bytes() == trace.read_bytes()
    assert content(trace)["distributedInfo"]["rank"] == 0
    shapes = [event["args"].get("Input Dims") for event in content(trace)["traceEvents"]
              if event["name"] == "aten::mm"]  # fmt: skip
    assert shapes == [[[8, 4], [4, 2]]] * 3

    out = capsys.readouterr().out
    title, rule, header, rule2, *rows = out.splitlines()
    clock = "CUDA" if torch.cuda.is_available() else "CPU"
    assert title == f"train on rank 0, steps 3 to 5: top operations by {clock} time"
    assert header.split("  ")[0] == "Name" and rule == rule2 == "-" * len(rule)
    columns = re.split(r" {2,}", header.strip())
    assert columns == ["Name", "Self FLOPS", "CPU total", "CUDA total", "# of Calls"]
    (mm,) = (re.split(r" {2,}", row) for row in rows if row.startswith("aten::mm "))
    assert (mm[1], mm[4]) == ("384", "3")
    assert re.fullmatch(r"\d+\.\d{3}(us|ms|s)", mm[2])
    (matmul,) = (re.split(r" {2,}", row) for row in rows if row.startswith("aten::matmul "))
    assert matmul[1] == "-"
    assert re.fullmatch(r"FLOPs a step: 128, \S+ a second \(\S+ a step\)", rows[-1])


def test_bare_and_without_flops(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    profiler(loop)(7)
    assert marks(tmp_path / "profiler_logs" / "trace_rank_0.json") == [3, 4, 5]
    assert "Self FLOPS" in capsys.readouterr().out
    profiler(with_flops=False, output_dir="other")(loop)(7)
    out = capsys.readouterr().out
    assert "FLOP" not in out and "# of Calls" in out
    trace = content(tmp_path / "other" / "trace_rank_0.json")
    assert all("Input Dims" not in event.get("args", {}) for event in trace["traceEvents"])


@pytest.mark.parametrize(
    ("options", "steps", "recorded"),
    [
        ({"skip_first": 0, "wait": 0, "warmup": 0, "active": 2}, 5, [[0, 1]]),
        ({"skip_first": 0, "wait": 0, "warmup": 2, "active": 1}, 5, [[2]]),
        ({"skip_first": 2, "wait": 1, "warmup": 1, "active": 2, "repeat": 2}, 20, [[4, 5], [8, 9]]),
        ({"skip_first": 1, "wait": 0, "warmup": 1, "active": 1, "repeat": 0}, 7, [[2], [4], [6]]),
        ({"skip_first": 0, "wait": 0, "warmup": 0, "active": 1, "repeat": 0}, 3, [[0], [1], [2]]),
        ({"repeat": 2}, 10, [[3, 4, 5], [8, 9]]),
        ({}, 5, [[3, 4]]),
    ],
)
def test_schedules(
    tmp_path: Path, options: dict[str, int], steps: int, recorded: list[list[int]]
) -> None:
    profiler(output_dir=tmp_path, **options)(loop)(steps)  # type: ignore[call-overload]
    assert [marks(trace) for trace in board(tmp_path)] == recorded
    assert marks(tmp_path / "trace_rank_0.json") == recorded[-1]


def test_each_cycle_is_summarised(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    profiler(output_dir=tmp_path, repeat=2)(loop)(9)
    titles = [line for line in capsys.readouterr().out.splitlines() if "top operations" in line]
    assert [title.split(": ")[0] for title in titles] == [
        "loop on rank 0, steps 3 to 5, cycle 1",
        "loop on rank 0, from step 8, cycle 2",
    ]


@pytest.mark.parametrize("steps", [0, 2, 3])
def test_a_function_that_ends_too_early(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, steps: int
) -> None:
    for _ in range(2):
        profiler(output_dir=tmp_path)(loop)(steps)
    assert os.listdir(tmp_path) == []
    assert [record.getMessage() for record in caplog.records] == [
        f"loop was not profiled: it called step_profiler() {steps} times, and the schedule needs "
        "6 (skip_first 1, wait 1, warmup 1, active 3)"
    ]


def test_stacks_and_modules(tmp_path: Path) -> None:
    options: Any = {"with_stack": True, "with_modules": True, "active": 1}
    profiler(output_dir=tmp_path, **options)(loop)(5)
    trace = content(tmp_path / "trace_rank_0.json")
    assert any("test_profiler_decorator.py" in event["name"] for event in trace["traceEvents"])
    assert (trace["with_stack"], trace["with_modules"]) == (1, 1)


def test_a_second_call_profiles_again(tmp_path: Path) -> None:
    decorated = profiler(output_dir=tmp_path)(loop)
    decorated(6)
    decorated(6)
    assert [marks(trace) for trace in board(tmp_path)] == [[3, 4, 5]] * 2


def test_the_trace_is_copied_where_links_are_not_to_be_had(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> None:
        raise PermissionError("no links here")

    monkeypatch.setattr(os, "link", fails)
    profiler(output_dir=tmp_path)(loop)(6)
    (trace,) = board(tmp_path)
    assert (tmp_path / "trace_rank_0.json").read_bytes() == trace.read_bytes()
    assert (tmp_path / "trace_rank_0.json").stat().st_ino != trace.stat().st_ino


# --- kinds of functions ---


def generator_into(folder: Path, closed: list[bool]) -> Any:
    """A profiled generator function, which notes each of its ends."""

    @profiler(output_dir=folder)
    def losses(steps: int) -> Generator[Any, Any, str]:
        try:
            for step in range(steps):
                work(step)
                try:
                    got = yield step
                except KeyError:
                    got = "caught"
                step_profiler()
                if got:
                    yield got
        finally:
            closed.append(True)
        return "end"

    assert inspect.isgeneratorfunction(losses)
    return losses


def test_a_generator(tmp_path: Path) -> None:
    losses = generator_into(tmp_path, [])
    generator = losses(9)
    assert [next(generator), generator.send("sent"), next(generator)] == [0, "sent", 1]
    step_profiler()  # of nobody: the generator is suspended
    assert generator.throw(KeyError("x")) == "caught"
    assert [*generator] == [2, 3, 4, 5, 6, 7, 8]
    assert marks(tmp_path / "trace_rank_0.json") == [3, 4, 5]

    def outer() -> Iterator[Any]:
        got.append((yield from losses(0)))

    got: list[Any] = []
    assert [*outer()] == [] and got == ["end"]


def test_a_generator_that_is_abandoned_or_raises(tmp_path: Path) -> None:
    closed: list[bool] = []
    losses = generator_into(tmp_path, closed)
    abandoned = losses(9)
    assert [next(abandoned) for _ in range(5)] == [0, 1, 2, 3, 4]
    abandoned.close()
    assert closed == [True]
    assert [marks(trace) for trace in board(tmp_path)] == [[3, 4]]
    failing = losses(2)
    next(failing)
    error = ValueError("mine")
    with pytest.raises(ValueError, match="mine") as raised:
        failing.throw(error)
    assert raised.value is error
    assert closed == [True, True]


def test_a_coroutine_and_its_tasks(tmp_path: Path) -> None:
    async def child(step: int) -> None:
        await asyncio.sleep(0)
        work(step)
        step_profiler()

    @profiler(output_dir=tmp_path)
    async def train(steps: int) -> str:
        for step in range(steps):
            await asyncio.create_task(child(step))
        return "done"

    assert inspect.iscoroutinefunction(train)
    assert asyncio.run(train(8)) == "done"
    assert marks(tmp_path / "trace_rank_0.json") == [3, 4, 5]


def test_concurrent_coroutines(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    @profiler(output_dir=tmp_path)
    async def train(first: int) -> None:
        for step in range(first, first + 8):
            work(step)
            await asyncio.sleep(0)
            step_profiler()

    async def both() -> None:
        await asyncio.gather(train(0), train(100))

    asyncio.run(both())
    # One has the profiler; what the other does meanwhile is in the trace, too.
    (trace,) = board(tmp_path)
    assert "runs unprofiled" in caplog.text
    names = {event["name"] for event in content(trace)["traceEvents"]}
    assert {"mark3", "mark4", "mark5", "ProfilerStep#3", "ProfilerStep#5"} <= names


def test_an_asynchronous_generator(tmp_path: Path) -> None:
    closed = []

    @profiler(output_dir=tmp_path)
    async def losses(steps: int) -> AsyncIterator[Any]:
        try:
            for step in range(steps):
                work(step)
                await asyncio.sleep(0)
                try:
                    yield step
                except KeyError:
                    yield "caught"
                step_profiler()
        finally:
            closed.append(True)

    async def use() -> list[Any]:
        stream: Any = losses(9)
        first = [await anext(stream), await stream.athrow(KeyError("x"))]
        step_profiler()
        rest = [item async for item in stream]
        async for item in losses(9):
            if item == 4:
                break
        return first + rest

    assert inspect.isasyncgenfunction(losses)
    assert asyncio.run(use()) == [0, "caught", 1, 2, 3, 4, 5, 6, 7, 8]
    assert closed == [True, True]
    assert [marks(trace) for trace in board(tmp_path)] == [[3, 4, 5], [3, 4]]


def test_methods(tmp_path: Path) -> None:
    class Trainer:
        steps = 6

        @profiler(output_dir=tmp_path / "method", enabled=lambda self, on: on)
        def fit(self, on: bool) -> type:
            loop(self.steps)
            return type(self)

        @classmethod
        @profiler(output_dir=tmp_path / "inside")
        def of_class(cls) -> type:
            loop(cls.steps)
            return cls

        @profiler(output_dir=tmp_path / "outside")
        @classmethod
        def above(cls) -> type:
            loop(cls.steps)
            return cls

        @profiler(output_dir=tmp_path / "static")
        @staticmethod
        def plain(steps: int) -> int:
            loop(steps)
            return steps

    trainer = Trainer()
    assert trainer.fit(False) is Trainer
    assert not (tmp_path / "method").exists()
    assert [trainer.fit(True), Trainer.of_class(), trainer.above()] == [Trainer] * 3
    assert Trainer.plain(6) == 6
    for name in ("method", "inside", "outside", "static"):
        assert marks(tmp_path / name / "trace_rank_0.json") == [3, 4, 5]


def test_other_callables(tmp_path: Path) -> None:
    class Training:
        def __call__(self, steps: int) -> None:
            loop(steps)

    profiler(output_dir=tmp_path)(Training())(6)
    assert marks(tmp_path / "trace_rank_0.json") == [3, 4, 5]


# --- one profiler at a time ---


def test_nested_calls(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    @profiler(output_dir=tmp_path / "inner")
    def inner() -> None:
        loop(20)

    @profiler(output_dir=tmp_path / "outer")
    def outer() -> None:
        for step in range(6):
            work(200 + step)
            inner()
            step_profiler()

    outer()
    assert not (tmp_path / "inner").exists()
    trace = content(tmp_path / "outer" / "trace_rank_0.json")
    names = {event["name"] for event in trace["traceEvents"]}
    assert {name for name in names if name.startswith("mark20")} == {
        "mark203",
        "mark204",
        "mark205",
    }
    assert {name for name in names if name.startswith("Profiler")} == {
        "ProfilerStep#3",
        "ProfilerStep#4",
        "ProfilerStep#5",
    }
    assert [record.getMessage() for record in caplog.records] == [
        "inner runs unprofiled: it was called by outer, which is profiled already"
    ]
    inner()
    assert marks(tmp_path / "inner" / "trace_rank_0.json") == [3, 4, 5]


def test_threads(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    begin = threading.Barrier(2)

    def train() -> None:
        begin.wait()
        for _ in range(7):
            work()
            step_profiler()
            begin.wait()

    decorated = profiler(output_dir=tmp_path)(train)
    threads = [threading.Thread(target=decorated) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(board(tmp_path)) == 1
    assert "runs unprofiled" in caplog.text


def test_steps_from_elsewhere(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    step_profiler()

    @profiler(output_dir=tmp_path)
    async def train() -> None:
        for _ in range(9):
            await asyncio.to_thread(step_profiler)

    asyncio.run(train())
    assert "train was not profiled: it called step_profiler() 0 times" in caplog.text
    assert "those in other threads do not count" in caplog.text
    assert os.listdir(tmp_path) == []

    @profiler(output_dir=tmp_path)
    def with_thread() -> None:
        for step in range(6):
            # As a thread begins where there is a GIL, and where there is none.
            for context in (contextvars.Context(), contextvars.copy_context()):
                thread = threading.Thread(target=context.run, args=(loop, 20))
                thread.start()
                thread.join()
            work(step)
            step_profiler()

    with_thread()
    assert marks(tmp_path / "trace_rank_0.json") == [3, 4, 5]


def test_a_generator_that_another_thread_closes(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    @profiler(output_dir=tmp_path)
    def losses() -> Iterator[int]:
        for step in range(9):
            work(step)
            yield step
            step_profiler()

    generator: Any = losses()
    for _ in range(5):
        next(generator)
    thread = threading.Thread(target=generator.close)
    thread.start()
    thread.join()
    assert "losses continued in another thread" in caplog.text
    assert os.listdir(tmp_path) == []
    profiler(output_dir=tmp_path)(loop)(6)
    assert marks(tmp_path / "trace_rank_0.json") == [3, 4, 5]


def test_a_profiler_of_the_programs_own(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with torch.profiler.profile():
        profiler(output_dir=tmp_path)(loop)(6)
    assert "@profiler of loop runs unprofiled" in caplog.text
    assert len(caplog.records) == 1
    assert os.listdir(tmp_path) == []


def test_a_forked_child_profiles_nothing(tmp_path: Path) -> None:
    @profiler(output_dir=tmp_path)
    def train() -> None:
        for step in range(7):
            work(step)
            step_profiler()
            if step == 3:
                child = os.fork()
                if child == 0:
                    for _ in range(5):
                        step_profiler()
                    os._exit(0)
                assert os.waitpid(child, 0)[1] == 0

    train()
    assert marks(tmp_path / "trace_rank_0.json") == [3, 4, 5]
    assert len(board(tmp_path)) == 1


# --- trouble ---


@pytest.mark.parametrize(("raises_at", "recorded"), [(1, []), (2, []), (4, [[3, 4]])])
def test_exceptions_go_on_unchanged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, raises_at: int, recorded: list[list[int]]
) -> None:
    error = RuntimeError("out of memory")

    @profiler(output_dir=tmp_path)
    def train() -> None:
        for step in range(9):
            work(step)
            if step == raises_at:
                raise error
            step_profiler()

    with pytest.raises(RuntimeError) as raised:
        train()
    assert raised.value is error and error.__context__ is None and error.__cause__ is None
    assert caplog.records == []
    assert [marks(trace) for trace in board(tmp_path)] == recorded if recorded else True
    profiler(output_dir=tmp_path)(loop)(6)


def test_a_folder_that_cannot_be_written(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("in the way")
    profiler(output_dir=blocked)(loop)(6)
    assert "@profiler of loop: the trace could not be written" in caplog.text
    assert "aten::mm" in capsys.readouterr().out


def test_torch_that_fails_ends_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def failing(real: Any) -> Any:
        def fails(profile: Any) -> None:
            real(profile)
            raise RuntimeError("CUPTI is not there")

        return fails

    for name in ("start", "step", "stop"):
        with monkeypatch.context() as patch:
            real = getattr(torch.profiler.profile, name)
            patch.setattr(torch.profiler.profile, name, failing(real))
            profiler(output_dir=tmp_path)(loop)(6)
    assert caplog.text.count("CUPTI is not there") >= 3
    profiler(output_dir=tmp_path / "after")(loop)(6)
    assert marks(tmp_path / "after" / "trace_rank_0.json") == [3, 4, 5]


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"active": 0}, ValueError, "active must be at least 1, not 0"),
        ({"wait": -1}, ValueError, "wait must be at least 0, not -1"),
        ({"skip_first": 1.5}, TypeError, "skip_first must be an int, not 1.5"),
        ({"repeat": True}, TypeError, "repeat must be an int, not True"),
        ({"warmup": None}, TypeError, "warmup must be an int"),
        ({"with_flops": "yes"}, TypeError, "with_flops must be a bool, not 'yes'"),
        ({"enabled": 1}, TypeError, "enabled must be a bool or a callable that gives one"),
        ({"output_dir": None}, TypeError, "output_dir must be a path, not None"),
        ({"ranks": "0"}, TypeError, "ranks must be None, an int or a list of int"),
        ({"ranks": [-1]}, ValueError, "each of ranks must be at least 0"),
        ({"steps": 3}, TypeError, "steps"),
    ],
)
def test_wrong_arguments(options: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=re.escape(message)):
        profiler(**options)


def test_what_cannot_be_decorated() -> None:
    with pytest.raises(TypeError, match="a function or keywords, not 3"):
        profiler(3)  # type: ignore[call-overload]
    with pytest.raises(TypeError, match=r"decorates functions, not 3"):
        profiler()(3)  # type: ignore[type-var]


# --- on and off ---


def test_disabled_is_the_function_itself() -> None:
    assert profiler(enabled=False)(loop) is loop


def test_enabled_by_the_arguments_of_the_call(tmp_path: Path) -> None:
    parser = argparse.ArgumentParser()
    add_profiler_args(parser)

    @profiler(output_dir=tmp_path, enabled=lambda args: args.profile)
    def train(args: argparse.Namespace) -> None:
        loop(6)

    train(parser.parse_args([]))
    assert os.listdir(tmp_path) == []
    train(parser.parse_args(["--profile"]))
    assert marks(tmp_path / "trace_rank_0.json") == [3, 4, 5]


def test_one_that_is_off_leaves_the_steps_to_its_caller(tmp_path: Path) -> None:
    inner = profiler(enabled=lambda steps: False)(loop)
    profiler(output_dir=tmp_path)(lambda: inner(6))()
    assert marks(tmp_path / "trace_rank_0.json") == [3, 4, 5]


@pytest.mark.parametrize(
    ("arguments", "enabled", "nsight"),
    [([], False, False), (["--profile"], True, False), (["--nsight"], True, True)],
)
def test_arguments(arguments: list[str], enabled: bool, nsight: bool) -> None:
    parser = argparse.ArgumentParser()
    add_profiler_args(parser)
    options = profiler_options(parser.parse_args(arguments))
    assert options == {"enabled": enabled, "nsight_enabled": nsight}
    assert (profiler(**options)(loop) is loop) is not enabled


def test_enabled_by_position() -> None:
    assert profiler(False)(loop) is loop
    assert profiler(True)(loop) is not loop
    with pytest.raises(TypeError, match="enabled is given twice"):
        profiler(True, enabled=False)


def test_ranks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(rank: int, ranks: Any) -> tuple[bool, bool]:
        monkeypatch.setenv("RANK", str(rank))
        monkeypatch.setenv("WORLD_SIZE", "4")
        folder = tmp_path / f"{rank} of {ranks}"
        profiler(output_dir=folder, ranks=ranks)(loop)(6)
        printed = bool(capsys.readouterr().out)
        if not folder.exists():
            return False, printed
        assert sorted(os.listdir(folder)) == [f"rank_{rank}", f"trace_rank_{rank}.json"]
        trace = content(folder / f"trace_rank_{rank}.json")
        assert trace["distributedInfo"] == {"backend": "none", "rank": rank, "world_size": 4}
        return True, printed

    assert [run(0, None), run(1, None)] == [(True, True), (True, False)]
    assert [run(0, [1, 2]), run(1, [1, 2]), run(2, [1, 2])] == [
        (False, False),
        (True, True),
        (True, False),
    ]


# --- nsys ---


class Runtime:
    """In place of what starts and stops the CUDA profiler."""

    def __init__(self, log: list[str], fails: bool = False) -> None:
        self.log = log
        self.fails = fails

    def start(self) -> None:
        self.log.append("start")
        if self.fails:
            raise RuntimeError("cuProfilerStart failed")

    def stop(self) -> None:
        self.log.append("stop")


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Runtime:
    runtime = Runtime([])
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    backend = "my_utils.profilers.torch_profiler.decorated_run.CudaProfiler"
    monkeypatch.setattr(backend, lambda: runtime)
    monkeypatch.delenv("NSYS_PROFILING_SESSION_ID", raising=False)
    return runtime


def log_steps(log: list[str], steps: int) -> None:
    for step in range(steps):
        work(step)
        log.append(str(step))
        step_profiler()


def test_the_cuda_profiler_runs_in_the_active_steps(
    tmp_path: Path, cuda: Runtime, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["train.py", "--nsight", "a b"])
    options: Any = {"output_dir": tmp_path, "nsight_enabled": True, "active": 2}
    profiler(nsight_output="my report", repeat=2, **options)(log_steps)(cuda.log, 9)
    assert " ".join(cuda.log) == "0 1 2 start 3 4 stop 5 6 start 7 8 stop"
    assert [record.getMessage() for record in caplog.records] == [
        "nsight_enabled: this process does not run under nsys; start it as: nsys profile "
        "-o 'my report' --capture-range=cudaProfilerApi --capture-range-end=repeat:2 "
        "python train.py --nsight 'a b'"
    ]
    caplog.clear()
    cuda.log.clear()
    monkeypatch.setenv("NSYS_PROFILING_SESSION_ID", "7")
    profiler(**options)(log_steps)(cuda.log, 9)
    assert " ".join(cuda.log) == "0 1 2 start 3 4 stop 5 6 7 8"
    assert caplog.records == []
    assert marks(tmp_path / "trace_rank_0.json") == [3, 4]


def test_the_cuda_profiler_is_stopped_by_an_exception(tmp_path: Path, cuda: Runtime) -> None:
    @profiler(output_dir=tmp_path, nsight_enabled=True)
    def train() -> None:
        loop(4)
        raise KeyError("x")

    with pytest.raises(KeyError):
        train()
    assert cuda.log == ["start", "stop"]


def test_a_cuda_profiler_that_fails(
    tmp_path: Path, cuda: Runtime, caplog: pytest.LogCaptureFixture
) -> None:
    cuda.fails = True
    profiler(output_dir=tmp_path, nsight_enabled=True)(loop)(6)
    assert "the CUDA profiler could not be started" in caplog.text
    assert (cuda.log, marks(tmp_path / "trace_rank_0.json")) == (["start"], [3, 4, 5])


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_nsight_without_cuda(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(2):
        profiler(output_dir=tmp_path, nsight_enabled=True)(loop)(6)
    assert [record.getMessage() for record in caplog.records] == [
        "nsight_enabled: CUDA is not available; nothing is captured for nsys"
    ]
    assert len(board(tmp_path)) == 2


@pytest.mark.gpu
def test_on_a_gpu(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    @profiler(output_dir=tmp_path)
    def train() -> None:
        weight = torch.randn(512, 512, device="cuda", requires_grad=True)
        for step in range(6):
            with torch.profiler.record_function(f"mark{step}"):
                (weight @ weight).sum().backward()
            step_profiler()

    train()
    assert marks(tmp_path / "trace_rank_0.json") == [3, 4, 5]
    out = capsys.readouterr().out
    assert "top operations by CUDA time" in out
    (mm,) = (re.split(r" {2,}", row) for row in out.splitlines() if row.startswith("aten::mm "))
    assert mm[1] == "2.416G"  # three products a step, three steps
    assert re.fullmatch(r"\d+\.\d{3}(us|ms)", mm[3])


# --- real programs ---


def test_nothing_heavy_is_imported(run_python: RunPython) -> None:
    code = (
        "import sys; from my_utils.profiling.decorator import profiler, step_profiler\n"
        "profiler()(print)('hello'); step_profiler()\n"
        "print([m for m in ('torch', 'numpy', 'pandas') if m in sys.modules])"
    )
    assert run_python("-c", code).stdout == "hello\n[]\n"


JOINED = """
import torch
from my_utils import GlobalLogger, MyTimer
from my_utils.profiling.decorator import profiler, step_profiler
GlobalLogger().setup("logs", rank=0, console=False)
timer = MyTimer()

@profiler(output_dir="traces")
def losses():
    for step in range(8):
        timer.set_step(step)
        with timer.time_stage("product"):
            torch.ones(300, 300) @ torch.ones(300, 300)
        timer.step()
        step_profiler()
        yield step

left_open = losses()
for _ in range(5):
    next(left_open)
print("leaving")
"""


@pytest.mark.slow
def test_the_exit_writes_what_is_open_and_the_trace_joins_the_timer(
    run_python: RunPython, tmp_path: Path
) -> None:
    result = run_python("-c", JOINED)
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith("leaving\nlosses on rank 0, from step 3: top operations")
    trace = tmp_path / "traces" / "trace_rank_0.json"
    summary = csv_to_trace(tmp_path / "logs", tmp_path / "out.json", merge=[trace])
    assert summary.messages() == []
    events = content(tmp_path / "out.json")["traceEvents"]
    stages = [e for e in events if e["name"] == "product" and e["ph"] == "X"]
    products = [e for e in events if e["name"] == "aten::mm"]
    assert (len(stages), len(products)) == (5, 2)
    for product in products:
        middle = product["ts"] + product["dur"] / 2
        assert any(s["ts"] <= middle <= s["ts"] + s["dur"] for s in stages)


def test_tensorboard_reads_the_traces(tmp_path: Path) -> None:
    pytest.importorskip("torch_tb_profiler", reason="torch-tb-profiler is not installed")
    from torch_tb_profiler import consts
    from torch_tb_profiler.profiler.data import RunProfileData
    from torch_tb_profiler.profiler.run_generator import RunGenerator

    profiler(output_dir=tmp_path, repeat=2)(loop)(12)
    workers = set()
    for trace, steps in zip(board(tmp_path), (["3", "4", "5"], ["8", "9", "10"]), strict=True):
        found = consts.WORKER_PATTERN.match(trace.name)
        assert found is not None
        workers.add(found[1])
        data = RunProfileData.parse(found[1], found[2], str(trace), str(tmp_path))
        assert data.steps_names == steps
        views = RunGenerator(found[1], found[2], data).generate_run_profile().views
        assert {"overall", "operator", "trace"} <= {view.name for view in views}
    assert len(workers) == 1


@pytest.mark.skipif(why_missing() is not None, reason=str(why_missing()))
def test_perfetto_opens_the_trace(tmp_path: Path) -> None:
    profiler(output_dir=tmp_path)(loop)(6)
    with TraceProcessor(tmp_path / "trace_rank_0.json") as processor:
        rows = processor.query("select name, count(*) as n, min(dur) as d from slice group by 1")
    found = {row["name"]: (row["n"], row["d"]) for row in rows}
    assert found["aten::mm"][0] == 3 and found["aten::mm"][1] > 0
    assert {f"ProfilerStep#{step}" for step in (3, 4, 5)} <= set(found)
    assert all(shortest >= 0 for _, shortest in found.values())


TRAIN = """
import argparse, os
import torch
from my_utils.profiling.decorator import *

parser = argparse.ArgumentParser()
add_profiler_args(parser)
args = parser.parse_args()

@profiler(**profiler_options(args), output_dir="traces")
def train():
    torch.distributed.init_process_group("gloo")
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64))
    for step in range(7):
        with torch.profiler.record_function(f"mark{step}"):
            model(torch.randn(8, 64)).sum().backward()
        step_profiler()
    # Without it gloo's thread may free the last backward at the end, and abort.
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()

train()
"""


@pytest.mark.thorough
@pytest.mark.timeout(320)
def test_torchrun(tmp_path: Path, run_python: RunPython) -> None:
    (tmp_path / "train.py").write_text(TRAIN)
    result = run_python(
        "-m", "torch.distributed.run", "--standalone", "--local-addr", "127.0.0.1",
        "--nproc-per-node", "2", "train.py", "--profile",
        env={"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}, timeout=300,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    assert result.stdout.count("top operations") == 1
    assert "train on rank 0, steps 3 to 5" in result.stdout
    # Forward, and the gradient of the weight: that of the input is not wanted.
    (addmm,) = (re.split(r" {2,}", line) for line in result.stdout.splitlines()
                if line.startswith("aten::addmm "))  # fmt: skip
    assert addmm[1] == "196.608K"
    folder = tmp_path / "traces"
    assert sorted(os.listdir(folder)) == [
        "rank_0", "rank_1", "trace_rank_0.json", "trace_rank_1.json",
    ]  # fmt: skip
    for rank in (0, 1):
        (trace,) = board(folder, rank)
        assert marks(trace) == [3, 4, 5]
        info = content(trace)["distributedInfo"]
        assert (info["backend"], info["rank"], info["world_size"]) == ("gloo", rank, 2)


RAY = """
import os, sys
import ray, torch
from my_utils.profiling.decorator import profiler, step_profiler

@ray.remote
@profiler(output_dir=sys.argv[1])
def train(steps):
    for step in range(steps):
        with torch.profiler.record_function(f"mark{step}"):
            torch.ones(8, 4) @ torch.ones(4, 2)
        step_profiler()
    return steps

ray.init(address="local", num_cpus=1, include_dashboard=False, object_store_memory=100 * 2**20,
         configure_logging=False, log_to_driver=False)
print(ray.get(train.remote(6)))
"""


@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.timeout(320)
def test_ray(tmp_path: Path, run_python: RunPython) -> None:
    pytest.importorskip("ray", reason="ray is not installed")
    (tmp_path / "train.py").write_text(RAY)
    result = run_python(
        "train.py", str(tmp_path / "traces"), env={"RAY_USAGE_STATS_ENABLED": "0"}, timeout=300
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines()[-1] == "6"
    (trace,) = (tmp_path / "traces").glob("trace_worker_*.json")  # it has no rank
    assert marks(trace) == [3, 4, 5]
