"""Times of functions and blocks on one rank: what is recorded, by whom, and under which name."""

from __future__ import annotations

import asyncio
import contextvars
import copy
import functools
import inspect
import pickle
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

from my_utils import _core
from my_utils.core.warnings import forget
from my_utils.timing import TimeManager, timer, timer_wrap

pytestmark = pytest.mark.no_torch


@timer_wrap()
def plain(x: int = 1) -> int:
    """Gives back what it gets."""
    return x


@timer_wrap("other name")
def renamed() -> None:
    pass


def counts(tm: TimeManager) -> dict[str, int]:
    return {name: len(times) for name, times in tm.records.items()}


class TestWhatIsRecorded:
    def test_only_while_enabled(self) -> None:
        tm = TimeManager()
        plain()
        with tm.enable_timer() as inside:
            assert inside is tm
            plain()
            renamed()
            with timer("block"):
                plain()
        plain()
        with timer("block"):
            pass
        assert counts(tm) == {"plain": 2, "other name": 1, "block": 1}

    def test_times_are_seconds_by_a_steady_clock(self) -> None:
        @timer_wrap()
        def sleep() -> None:
            time.sleep(0.02)

        tm = TimeManager()
        began = time.perf_counter()
        with tm.enable_timer(), timer("around"):
            sleep()
        took = time.perf_counter() - began
        assert 0.02 <= tm.records["sleep"][0] <= tm.records["around"][0] <= took

    def test_a_managers_own_timer_needs_nothing_enabled(self) -> None:
        tm, other = TimeManager(), TimeManager()
        with other.enable_timer(), tm.timer(name="mine"):
            pass
        assert counts(tm) == {"mine": 1}
        assert counts(other) == {}

    def test_all_enabled_managers_record(self) -> None:
        outer, inner = TimeManager(), TimeManager()
        with outer.enable_timer():
            plain()
            with inner.enable_timer(), timer("both"):
                plain()
            plain()
        assert counts(outer) == {"plain": 3, "both": 1}
        assert counts(inner) == {"plain": 1, "both": 1}
        assert outer.records["both"] == inner.records["both"]

    def test_one_that_is_enabled_twice_records_once(self) -> None:
        tm = TimeManager()
        with tm.enable_timer():
            with tm.enable_timer():
                plain()
            plain()
        plain()
        assert counts(tm) == {"plain": 2}

    def test_exceptions_pass_and_are_timed(self) -> None:
        @timer_wrap()
        def fails() -> None:
            raise KeyError("mine")

        tm = TimeManager()
        with tm.enable_timer():
            with pytest.raises(KeyError, match="mine"):
                fails()
            with pytest.raises(ZeroDivisionError), timer("block"):
                _ = 1 / 0
        assert counts(tm) == {"fails": 1, "block": 1}
        with pytest.raises(ValueError, match="left"), tm.enable_timer():
            raise ValueError("left")
        assert _core.enabled_recorders() == ()

    def test_recursion(self) -> None:
        @timer_wrap()
        def down(n: int) -> int:
            return 0 if n == 0 else 1 + down(n - 1)

        tm = TimeManager()
        with tm.enable_timer():
            assert down(50) == 50
        times = tm.records["down"]
        assert len(times) == 51
        assert times == sorted(times)  # the innermost ends first

    def test_arguments_and_results(self) -> None:
        @timer_wrap()
        def every(a: int, /, b: int, *rest: int, c: int = 4, **more: int) -> tuple[Any, ...]:
            return a, b, rest, c, more

        tm = TimeManager()
        for enabled in (False, True):
            with tm.enable_timer() if enabled else contextvars_nothing():
                assert every(1, 2) == (1, 2, (), 4, {})
                assert every(1, 2, 3, c=5, d=6) == (1, 2, (3,), 5, {"d": 6})
                assert every(*(1, 2), c=9) == (1, 2, (), 9, {})
                with pytest.raises(TypeError, match="missing"):
                    every()  # type: ignore[call-arg]
        assert counts(tm) == {"every": 3}  # what cannot be called is not timed

    def test_records_given_and_cleared(self) -> None:
        tm = TimeManager({"a": [0.5, 0.25]})
        assert tm.records == {"a": [0.5, 0.25]}
        tm.records["a"].append(3.0)  # a copy
        assert tm.records == {"a": [0.5, 0.25]}
        tm.clear()
        assert tm.records == {}
        tm.add("a", 3)
        assert tm.records == {"a": [3e-9]}

    def test_beyond_max_samples_the_first_stay(self) -> None:
        tm = TimeManager(max_samples=100)
        for ns in range(1, 1001):
            tm.add("a", ns)
        assert tm.records["a"] == [ns / 1e9 for ns in range(1, 101)]
        count, total, low, high, squares, *_ = tm.summary("a")
        assert (count, total, low, high) == (1000, 500500, 1, 1000)
        assert squares == pytest.approx(sum((ns - 500.5) ** 2 for ns in range(1, 1001)))

    def test_a_copy_has_those_beyond_max_samples(self) -> None:
        tm = TimeManager(max_samples=100)
        for ns in range(1, 1001):
            tm.add("a", ns)
        for other in (pickle.loads(pickle.dumps(tm)), copy.deepcopy(tm)):
            assert other.records == tm.records
            assert other.summary("a") == tm.summary("a")

    def test_names_without_end_go_under_one(self, caplog: pytest.LogCaptureFixture) -> None:
        forget("time_names")  # the warning of another test in this process
        tm = TimeManager()
        for number in range(4100):
            tm.add(f"step {number}", 1)
        assert len(tm.names()) == 4097
        assert counts(tm)["(other)"] == 4
        tm.add("step 3", 1)
        assert counts(tm)["step 3"] == 2
        assert sum("a TimeManager has 4096 names" in text for text in caplog.messages) == 1


class contextvars_nothing:
    def __enter__(self) -> None: ...
    def __exit__(self, *exc: object) -> None: ...


class Model:
    @timer_wrap()
    def forward(self, x: int) -> int:
        return x + self.bias

    bias = 1

    @timer_wrap()
    @staticmethod
    def static_below(x: int) -> int:
        return x

    @staticmethod
    @timer_wrap()
    def static_above(x: int) -> int:
        return x

    @timer_wrap()
    @classmethod
    def of_class(cls) -> str:
        return cls.__name__

    @property
    @timer_wrap("size")
    def size(self) -> int:
        return 7

    def __call__(self, x: int) -> int:
        return self.forward(x)


class Longer(Model):
    def forward(self, x: int) -> int:
        return super().forward(x) * 10


class TestWhatIsWrapped:
    def test_methods(self) -> None:
        tm = TimeManager()
        model = Longer()
        with tm.enable_timer():
            assert model.forward(1) == 20
            assert Model.forward(model, 2) == 3
            assert list(map(Model().forward, [1, 2])) == [2, 3]
            assert Model.static_below(4) == model.static_above(4) == 4
            assert model.of_class() == "Longer"
            assert model.size == 7
        assert counts(tm) == {
            "forward": 4, "static_below": 1, "static_above": 1, "of_class": 1, "size": 1,
        }  # fmt: skip

    def test_callable_objects(self) -> None:
        tm = TimeManager()
        wrapped = timer_wrap()(Model())
        part = timer_wrap("part")(functools.partial(divmod, 7))
        builtin = timer_wrap()(len)
        with tm.enable_timer():
            assert wrapped(1) == 2
            assert part(2) == (3, 1)
            assert builtin("abc") == 3
        assert counts(tm) == {"forward": 1, "Model": 1, "part": 1, "len": 1}

    def test_looks_like_the_function(self) -> None:
        assert plain.__name__ == "plain"
        assert plain.__qualname__ == "plain"
        assert plain.__module__ == __name__
        assert plain.__doc__ == "Gives back what it gets."
        assert plain.__annotations__ == {"x": "int", "return": "int"}
        assert plain.__wrapped__(4) == 4  # type: ignore[attr-defined]
        assert str(inspect.signature(plain)) == "(x: 'int' = 1) -> 'int'"
        assert str(inspect.signature(Model().forward)) == "(x: 'int') -> 'int'"
        assert inspect.isroutine(plain)
        assert "plain" in repr(plain)
        anything: Any = plain
        anything.mark = 3
        assert anything.mark == 3
        del anything.mark

    def test_pickled_by_reference(self) -> None:
        assert pickle.loads(pickle.dumps(plain)) is plain
        assert pickle.loads(pickle.dumps(Model.forward)) is Model.forward
        assert copy.deepcopy(plain) is plain
        bound = pickle.loads(pickle.dumps(Longer().forward))
        assert bound(1) == 20

    def test_a_block_as_decorator(self) -> None:
        tm, mine = TimeManager(), TimeManager()

        @timer("as decorator")
        def one() -> int:
            return 1

        @mine.timer("always")
        def two() -> int:
            return 2

        with tm.enable_timer():
            assert one() + two() == 3
        assert one() + two() == 3
        assert counts(tm) == {"as decorator": 1}
        assert counts(mine) == {"always": 2}

    def test_a_block_is_used_again_but_not_within_itself(self) -> None:
        tm = TimeManager()
        block = tm.timer("a")
        for _ in range(3):
            with block:
                pass
        with block, pytest.raises(RuntimeError, match="running already"), block:
            pass
        assert counts(tm) == {"a": 4}

    def test_wrapped_twice_under_two_names(self) -> None:
        tm = TimeManager()
        both: Callable[[], int] = timer_wrap("outer")(timer_wrap("inner")(lambda: 1))
        with tm.enable_timer():
            both()
        assert counts(tm) == {"inner": 1, "outer": 1}

    def test_the_function_may_drop_its_own_name(self) -> None:
        held: dict[str, Callable[[], None]] = {}
        held["f"] = timer_wrap("f")(lambda: held.clear())
        tm = TimeManager()
        with tm.enable_timer():
            held["f"]()
        assert counts(tm) == {"f": 1}


class TestGenerators:
    def test_time_of_its_own_code(self) -> None:
        @timer_wrap()
        def rows() -> Iterator[int]:
            for n in range(3):
                time.sleep(0.002)
                yield n

        tm = TimeManager()
        with tm.enable_timer(), timer("around"):
            for _ in rows():
                time.sleep(0.03)
        [took], [around] = tm.records["rows"], tm.records["around"]
        assert 0.006 <= took <= around - 3 * 0.03
        assert inspect.isgeneratorfunction(rows)

    def test_send_throw_close_and_return(self) -> None:
        closed = []

        @timer_wrap()
        def talks() -> Any:
            try:
                got = yield 1
                try:
                    yield got
                except KeyError:
                    yield "caught"
            finally:
                closed.append(1)
            return "end"

        tm = TimeManager()
        with tm.enable_timer():
            first = talks()
            assert (next(first), first.send("hi"), first.throw(KeyError())) == (1, "hi", "caught")
            with pytest.raises(StopIteration) as stop:
                next(first)
            assert stop.value.value == "end"
            second = talks()
            next(second)
            second.close()
            third = talks()
            next(third)
            with pytest.raises(OSError, match="mine"):
                third.throw(OSError("mine"))
        assert len(closed) == 3
        assert counts(tm) == {"talks": 3}

    def test_asynchronous_ones(self) -> None:
        @timer_wrap()
        async def rows(n: int) -> AsyncIterator[int]:
            for each in range(n):
                await asyncio.sleep(0)
                yield each

        async def main() -> list[int]:
            found = [each async for each in rows(3)]
            half = rows(9)
            assert await anext(half) == 0
            await half.aclose()  # type: ignore[attr-defined]
            return found

        tm = TimeManager()
        with tm.enable_timer():
            assert asyncio.run(main()) == [0, 1, 2]
        assert counts(tm) == {"rows": 2}
        assert inspect.isasyncgenfunction(rows)


class TestTasksAndThreads:
    def test_each_task_has_its_own(self) -> None:
        @timer_wrap()
        async def work(n: float) -> float:
            with timer("inside"):
                await asyncio.sleep(n)
            plain()
            return n

        async def one(tm: TimeManager, times: int) -> None:
            with tm.enable_timer():
                for _ in range(times):
                    await work(0.001)

        async def main() -> list[TimeManager]:
            managers = [TimeManager() for _ in range(4)]
            runs = (one(tm, times) for times, tm in enumerate(managers, 1))
            await asyncio.gather(*runs, work(0.002))
            return managers

        assert inspect.iscoroutinefunction(work)
        outside = TimeManager()
        for times, tm in enumerate(asyncio.run(main()), 1):
            assert counts(tm) == dict.fromkeys(("work", "inside", "plain"), times)
        assert counts(outside) == {}

    def test_tasks_begin_with_what_their_maker_has(self) -> None:
        async def main(tm: TimeManager) -> None:
            with tm.enable_timer():
                await asyncio.create_task(asyncio.to_thread(plain))

        tm = TimeManager()
        asyncio.run(main(tm))
        assert counts(tm) == {"plain": 1}

    def test_the_end_of_the_block_is_the_end_for_its_tasks(self) -> None:
        async def late(ready: asyncio.Event) -> None:
            plain()
            await ready.wait()
            plain()

        async def main(outer: TimeManager, inner: TimeManager) -> None:
            ready = asyncio.Event()
            with outer.enable_timer():
                with inner.enable_timer():
                    task = asyncio.create_task(late(ready))
                    await asyncio.sleep(0)
                ready.set()
                await task

        outer, inner = TimeManager(), TimeManager()
        asyncio.run(main(outer, inner))
        assert counts(outer) == {"plain": 2}
        assert counts(inner) == {"plain": 1}

    def test_each_thread_has_its_own(self) -> None:
        managers = [TimeManager() for _ in range(6)]
        together = TimeManager()

        def run(tm: TimeManager) -> None:
            plain()
            with tm.enable_timer(), together.enable_timer():
                for _ in range(500):
                    plain()

        with managers[0].enable_timer():
            # Of its own: without a GIL a thread begins with a copy of its starter's context.
            threads = [
                threading.Thread(target=contextvars.Context().run, args=(run, tm))
                for tm in managers[1:]
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        assert [counts(tm).get("plain") for tm in managers] == [None, *[500] * 5]
        assert counts(together) == {"plain": 2500}

    def test_a_thread_that_takes_the_context_along(self) -> None:
        tm = TimeManager()
        with tm.enable_timer():
            context = contextvars.copy_context()
            thread = threading.Thread(target=context.run, args=(plain,))
            thread.start()
            thread.join()
        assert counts(tm) == {"plain": 1}


class TestWrongUse:
    @pytest.mark.parametrize("name", [3, b"x", plain])
    def test_names(self, name: Any) -> None:
        if name is not plain:
            with pytest.raises(TypeError, match="name must be a str"):
                timer_wrap(name)
        with pytest.raises(TypeError, match="name must be a str"):
            timer(name)
        with pytest.raises(TypeError, match="name must be a str"):
            TimeManager().timer(name)

    def test_functions(self) -> None:
        with pytest.raises(TypeError, match="timer_wrap cannot decorate the class Model"):
            timer_wrap()(Model)
        with pytest.raises(TypeError, match="decorates functions, not 3"):
            timer_wrap("x")(3)  # type: ignore[type-var]

    def test_limits(self) -> None:
        with pytest.raises(ValueError, match="max_samples"):
            TimeManager(max_samples=-1)
        with pytest.raises(TypeError, match="max_samples"):
            TimeManager(max_samples="1")  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="ns"):
            TimeManager().add("a", -1)
        with pytest.raises(KeyError, match="nothing"):
            TimeManager().samples("nothing")
