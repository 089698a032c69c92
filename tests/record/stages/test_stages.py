"""Stages as decorators and in asynchronous code: functions, coroutines, generators, tasks."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import os
import subprocess
import sys
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Generator, Iterator
from pathlib import Path
from typing import Any

import pytest

from my_utils.utils import MyTimer, NoOpMyTimer

from ...support.profile_rows import Profile, Row

pytestmark = [pytest.mark.c_code, pytest.mark.no_torch]


@pytest.fixture
def timer(profile: Profile) -> Iterator[MyTimer]:
    timer = MyTimer()
    yield timer
    assert timer.depth == 0
    assert timer.unmatched_stops == 0


def spans(profile: Profile) -> list[tuple[str, Row, Row]]:
    """Asynchronous stages as (name, start, end), in the order of their starts."""
    rows = profile.rows()
    assert {row.kind for row in rows} <= {"ASYNC_START", "ASYNC_END"}
    starts = {row.metadata["id"]: row for row in rows if row.kind == "ASYNC_START"}
    ends = {row.metadata["id"]: row for row in rows if row.kind == "ASYNC_END"}
    assert len(starts) + len(ends) == len(rows), "an id was used twice"
    assert starts.keys() == ends.keys()
    assert all(starts[key].name == ends[key].name for key in starts)
    return [(row.name, row, ends[key]) for key, row in starts.items()]


def names(profile: Profile) -> list[tuple[str, str]]:
    return [(row.name, row.kind) for row in profile.rows()]


# --- plain functions ---


def test_a_function_runs_inside_its_stage(timer: MyTimer, profile: Profile) -> None:
    @timer.time_stage("work")
    def work(a: int, *, b: int = 2) -> int:
        """Adds."""
        assert timer.depth == 1
        return a + b

    assert work(1, b=3) == 4
    assert (work.__name__, work.__doc__) == ("work", "Adds.")
    assert str(inspect.signature(work)) == "(a: 'int', *, b: 'int' = 2) -> 'int'"
    assert names(profile) == [("work", "START"), ("work", "END")]


def test_a_function_that_raises_ends_its_stage(timer: MyTimer, profile: Profile) -> None:
    calls = []

    @timer.time_stage("work")
    def work() -> None:
        calls.append(1)
        raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        work()
    assert calls == [1]
    assert names(profile) == [("work", "START"), ("work", "END")]


def test_a_recursive_function_nests(timer: MyTimer) -> None:
    @timer.time_stage("fib")
    def fib(n: int) -> int:
        return n if n < 2 else fib(n - 1) + fib(n - 2)

    assert fib(5) == 5
    counts = {len(row[0]): row[1] for row in timer.aggregates()}
    assert counts == {1: 1, 2: 2, 3: 4, 4: 6, 5: 2}


def test_methods_of_all_kinds(timer: MyTimer, profile: Profile) -> None:
    class Model:
        @timer.time_stage("plain")
        def plain(self) -> Model:
            return self

        @timer.time_stage("static")
        @staticmethod
        def static(x: int) -> int:
            return x

        @classmethod
        @timer.time_stage("class below")
        def below(cls) -> type[Model]:
            return cls

        @timer.time_stage("class above")
        @classmethod
        def above(cls) -> type[Model]:
            return cls

        @timer.time_stage("call")
        def __call__(self) -> str:
            return "called"

    model = Model()
    assert model.plain() is model
    assert (model.static(3), Model.static(4)) == (3, 4)
    assert model.below() is Model.above() is Model
    assert model() == "called"
    ended = [row.name for row in profile.ended()]
    assert ended == ["plain", "static", "static", "class below", "class above", "call"]


def test_callable_objects_and_partials(timer: MyTimer, profile: Profile) -> None:
    class Adder:
        def __init__(self) -> None:
            self.heavy = object()

        def __call__(self, x: int) -> int:
            return x + 1

    adder = timer.time_stage("object")(Adder())
    assert adder(1) == 2
    assert not hasattr(adder, "heavy")
    assert timer.time_stage("partial")(functools.partial(max, 3))(2) == 3
    assert timer.time_stage("builtin")(len)("abc") == 3
    assert [row.name for row in profile.ended()] == ["object", "partial", "builtin"]


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (dict, r"time_stage\('x'\) cannot decorate the class dict; decorate its methods"),
        (3, r"time_stage\('x'\) decorates functions, not 3"),
        (property(len), r"time_stage\('x'\) decorates functions, not <property"),
    ],
)
def test_what_is_no_function_is_refused(given: Any, text: str) -> None:
    with pytest.raises(TypeError, match=text):
        MyTimer().time_stage("x")(given)


# --- coroutines ---


def test_a_coroutine_function_is_an_asynchronous_event(timer: MyTimer, profile: Profile) -> None:
    @timer.time_stage("fetch")
    async def fetch(x: int) -> int:
        await asyncio.sleep(0.001)
        assert timer.depth == 0
        return x

    assert inspect.iscoroutinefunction(fetch)
    timer.set_step(6)

    async def main() -> list[int]:
        return list(await asyncio.gather(*(fetch(x) for x in range(20))))

    assert asyncio.run(main()) == list(range(20))
    found = spans(profile)
    assert [(name, start.step) for name, start, _ in found] == [("fetch", 6)] * 20
    last_start = max(start.time_ns for _, start, _ in found)
    assert last_start < min(end.time_ns for _, _, end in found), "all ran at the same time"
    assert all(end.time_ns - start.time_ns >= 900_000 for _, start, end in found)


def test_async_with_pairs_by_task(timer: MyTimer, profile: Profile) -> None:
    """Tasks of one stage overlap: each end belongs to the start of its own task."""
    order: list[int] = []

    async def work(number: int, started: asyncio.Event, go_on: asyncio.Event) -> None:
        async with timer.time_stage("work"):
            started.set()
            await go_on.wait()
        order.append(number)

    async def main() -> None:
        events = [(asyncio.Event(), asyncio.Event()) for _ in range(3)]
        tasks = [asyncio.create_task(work(n, *pair)) for n, pair in enumerate(events)]
        for started, _ in events:
            await started.wait()
        for number in (0, 2, 1):  # the first to begin ends first: neither nested nor in order
            events[number][1].set()
            await tasks[number]

    asyncio.run(main())
    assert order == [0, 2, 1]
    found = spans(profile)
    by_end = sorted(range(3), key=lambda number: found[number][2].time_ns)
    assert by_end == order


def test_async_with_nests_and_is_handed_to_child_tasks(timer: MyTimer, profile: Profile) -> None:
    async def child() -> None:
        async with timer.time_stage("work"):
            await asyncio.sleep(0)

    async def main() -> None:
        async with timer.time_stage("work") as handle:
            assert handle is timer.time_stage("work")
            task = asyncio.create_task(child())
            async with timer.time_stage("inner"):
                await asyncio.sleep(0)
            await task

    asyncio.run(main())
    found = spans(profile)
    assert [name for name, _, _ in found] == ["work", "inner", "work"]
    outer, _, inner = found
    assert outer[1].time_ns < inner[1].time_ns < inner[2].time_ns < outer[2].time_ns


def test_exceptions_and_cancellation_end_the_stage(timer: MyTimer, profile: Profile) -> None:
    @timer.time_stage("decorated")
    async def decorated() -> None:
        async with timer.time_stage("inside"):
            await asyncio.sleep(3600)

    async def fails() -> None:
        async with timer.time_stage("fails"):
            raise KeyError("mine")

    async def main() -> None:
        task = asyncio.create_task(decorated())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(decorated(), 0.001)
        with pytest.raises(KeyError):
            await fails()

    asyncio.run(main())
    assert sorted(name for name, _, _ in spans(profile)) == [
        "decorated",
        "decorated",
        "fails",
        "inside",
        "inside",
    ]


def test_a_stage_left_in_another_task_is_ended(timer: MyTimer, profile: Profile) -> None:
    async def main() -> None:
        stack = contextlib.AsyncExitStack()
        await asyncio.create_task(stack.enter_async_context(timer.time_stage("session")))
        await asyncio.sleep(0)
        await asyncio.create_task(stack.aclose())

    asyncio.run(main())
    assert [name for name, _, _ in spans(profile)] == ["session"]


def test_an_exit_without_an_enter_is_nothing(timer: MyTimer, profile: Profile) -> None:
    async def main() -> None:
        await timer.time_stage("a").__aexit__(None, None, None)

    asyncio.run(main())
    assert profile.rows() == []


def test_loops_in_many_threads(timer: MyTimer, profile: Profile) -> None:
    async def main() -> None:
        async def one() -> None:
            async with timer.time_stage("one"):
                await asyncio.sleep(0)

        await asyncio.gather(*(one() for _ in range(50)))

    threads = [threading.Thread(target=lambda: asyncio.run(main())) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(spans(profile)) == 200


def test_tags_go_with_asynchronous_events(profile: Profile) -> None:
    tagged = MyTimer(tag="a=b")

    async def main() -> None:
        async with tagged.time_stage("a"):
            pass

    asyncio.run(main())
    ((_, start, end),) = spans(profile)
    assert start.metadata["tag"] == end.metadata["tag"] == "a=b"


# --- generators ---


def test_a_generator_lasts_from_its_first_value_to_its_end(
    timer: MyTimer, profile: Profile
) -> None:
    @timer.time_stage("load")
    def load(count: int) -> Generator[int, str, str]:
        """Loads."""
        got = []
        for number in range(count):
            got.append((yield number))
        return ",".join(map(str, got))

    assert inspect.isgeneratorfunction(load)
    generator = load(2)
    assert profile.rows() == []
    with timer.time_stage("iter"):
        assert next(generator) == 0
        assert timer.depth == 1
    assert generator.send("x") == 1
    with pytest.raises(StopIteration) as stopped:
        generator.send("y")
    assert stopped.value.value == "x,y"
    assert names(profile) == [
        ("iter", "START"),
        ("load", "ASYNC_START"),
        ("iter", "END"),
        ("load", "ASYNC_END"),
    ]


def test_a_generator_given_up_ends(timer: MyTimer, profile: Profile) -> None:
    cleaned = []

    @timer.time_stage("load")
    def load() -> Generator[int, None, None]:
        try:
            while True:
                try:
                    yield 1
                except KeyError:
                    yield 2
        finally:
            cleaned.append(1)

    first, second = load(), load()
    assert next(first) == next(second) == 1
    assert first.throw(KeyError("k")) == 2
    first.close()
    del second
    assert cleaned == [1, 1]
    assert len(spans(profile)) == 2
    load()  # never begun: nothing to end
    assert len(spans(profile)) == 2


def test_an_asynchronous_generator_is_handed_everything(timer: MyTimer, profile: Profile) -> None:
    log: list[object] = []

    async def echo() -> AsyncGenerator[object, object]:
        got: object = None
        try:
            while got != "stop":
                try:
                    got = yield got
                except KeyError as error:
                    got = f"caught {error.args[0]}"
        finally:
            log.append("cleaned")

    decorated = timer.time_stage("echo")(echo)
    assert inspect.isasyncgenfunction(decorated)

    async def drive(make: Any) -> list[object]:
        generator = make()
        seen = [
            await anext(generator),
            await generator.asend("a"),
            await generator.athrow(KeyError("k")),
        ]
        with pytest.raises(StopAsyncIteration):
            await generator.asend("stop")
        closed = make()
        await anext(closed)
        await closed.aclose()
        failed = make()
        await anext(failed)
        with pytest.raises(ZeroDivisionError):
            await failed.athrow(ZeroDivisionError())
        return seen

    expected = asyncio.run(drive(echo))
    assert asyncio.run(drive(decorated)) == expected == [None, "a", "caught k"]
    assert log == ["cleaned"] * 6
    assert len(spans(profile)) == 3


def test_async_for_over_a_timed_generator(timer: MyTimer, profile: Profile) -> None:
    @timer.time_stage("numbers")
    async def numbers() -> AsyncIterator[int]:
        for number in range(3):
            await asyncio.sleep(0)
            yield number

    async def main() -> list[int]:
        return [number async for number in numbers()]

    assert asyncio.run(main()) == [0, 1, 2]
    assert [name for name, _, _ in spans(profile)] == ["numbers"]


# --- ids, forks, and the disabled timer ---


def test_ids_differ_in_a_forked_child_and_after_a_restart(tmp_path: Path) -> None:
    program = """
import asyncio, os
from my_utils import GlobalLogger, MyTimer
timer = MyTimer(log_dir="logs")
async def main():
    for _ in range(5):
        async with timer.time_stage("a"):
            pass
asyncio.run(main())
if (child := os.fork()) == 0:
    asyncio.run(main())
    GlobalLogger().close()
    os._exit(0)
os.waitpid(child, 0)
"""
    root = Path(__file__).resolve().parents[3]
    for _ in range(2):
        subprocess.run(
            [sys.executable, "-c", program],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(root)},
            check=True,
            timeout=60,
        )
    ids: list[str] = []
    for path in (tmp_path / "logs").glob("*.csv"):
        text = path.read_text()
        ids += [
            part.split("=")[1] for part in text.replace('"', ",").split(",") if part[:3] == "id="
        ]
    assert len(ids) == 2 * 2 * 2 * 5
    assert len(set(ids)) == len(ids) / 2
    assert all(0 < int(number) < 2**53 for number in ids)


def test_the_disabled_timer_leaves_functions_alone(profile: Profile) -> None:
    timer = NoOpMyTimer()

    def function() -> None: ...

    async def main() -> str:
        async with timer.time_stage("a"), timer.time_stage("b"):
            return "done"

    assert timer.time_stage("a")(function) is function
    assert asyncio.run(main()) == "done"
    with timer.time_stage("a"):
        pass
    assert profile.rows() == []
