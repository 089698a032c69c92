"""Every decorator of ours over every kind of callable: what comes out behaves as what went in."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import gc
import inspect
import pickle
import sys
import time
import types
import weakref
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import pytest

from my_utils.profiling.backends import NoOpBackend
from my_utils.profiling.capture_controller import (
    CaptureController,
    capture_hook,
    set_default_controller,
)
from my_utils.profiling.decorator import profiler
from my_utils.timing import TimeManager, timer, timer_wrap
from my_utils.utils import MyTimer

Decorator = Callable[[Any], Any]

# A run of the profiler is tested elsewhere; here its wrapper counts, with a run that is not on.
DECORATORS: dict[str, Decorator] = {
    "time_stage": MyTimer().time_stage("stage"),
    "timer_wrap": timer_wrap("timed"),
    "timer": timer("timed"),
    "TimeManager.timer": TimeManager().timer("timed"),
    "capture_hook": capture_hook("hooked"),
    "CaptureController.wrap": CaptureController(NoOpBackend()).wrap("hooked"),
    "profiler": profiler(enabled=lambda *_, **__: False),
}


@pytest.fixture(autouse=True)
def something_is_on(profile: object) -> Iterator[None]:
    before = set_default_controller(CaptureController(NoOpBackend()))
    with TimeManager().enable_timer():
        yield
    set_default_controller(before)


@pytest.fixture(params=DECORATORS)
def decorator(request: pytest.FixtureRequest) -> Decorator:
    return DECORATORS[request.param]


# --- the kinds, and what is done with each ---


def plain(x: int, *, y: int = 1) -> int:
    """Adds."""
    return x + y if x else x // 0


async def coroutine(x: int, *, y: int = 1) -> int:
    """Adds."""
    await asyncio.sleep(0)
    return x + y if x else x // 0


def generator(x: int, *, y: int = 1) -> Generator[Any, Any, str]:
    """Gives back what it is sent."""
    got: Any = x + y
    while got != "stop":
        try:
            got = yield got
        except KeyError as error:
            got = f"caught {error}, context {error.__context__}"
        except GeneratorExit:
            LOG.append("closed")
            raise
    return "returned"


async def stream(x: int, *, y: int = 1) -> AsyncGenerator[Any, Any]:
    """Gives back what it is sent."""
    got: Any = x + y
    while got != "stop":
        await asyncio.sleep(0)
        try:
            got = yield got
        except KeyError as error:
            got = f"caught {error}, context {error.__context__}"
        except GeneratorExit:
            await asyncio.sleep(0)
            LOG.append("closed")
            raise


@contextlib.contextmanager
def manager(x: int, *, y: int = 1) -> Iterator[int]:
    """Lets no KeyError out."""
    LOG.append("enter")
    with contextlib.suppress(KeyError):
        yield x + y
    LOG.append("exit")


@contextlib.asynccontextmanager
async def async_manager(x: int, *, y: int = 1) -> AsyncIterator[int]:
    """Lets no KeyError out."""
    LOG.append("enter")
    await asyncio.sleep(0)
    with contextlib.suppress(KeyError):
        yield x + y
    LOG.append("exit")


@types.coroutine
def old_coroutine(x: int, *, y: int = 1) -> Generator[Any, Any, int]:
    """Adds."""
    yield
    return x + y if x else x // 0


LOG: list[str] = []


def _result(call: Callable[[], Any]) -> Any:
    try:
        return call()
    except BaseException as error:
        return type(error), str(error)


def use_plain(function: Any) -> list[Any]:
    return [_result(lambda: function(3, y=4)), _result(lambda: function(0))]


def use_coroutine(function: Any) -> list[Any]:
    async def run(x: int) -> Any:
        return await function(x)

    async def cancelled() -> None:
        task = asyncio.ensure_future(run(3))
        await asyncio.sleep(0)
        task.cancel()
        await task

    def result(call: Any) -> Any:
        return _result(lambda: asyncio.run(call))

    return [result(run(3)), result(run(0)), result(cancelled())]


def use_generator(function: Any) -> list[Any]:
    one, two, three, four = function(3), function(3), function(3), function(3)
    sent = [next(one), one.send("a"), one.throw(KeyError("k")), _result(lambda: one.send("stop"))]
    closed = [next(two), two.close(), _result(lambda: next(two))]
    failed = [next(three), _result(lambda: three.throw(ZeroDivisionError("z")))]
    never = [four.close(), _result(lambda: next(four))]
    return [sent, closed, failed, never, inspect.getgeneratorstate(one)]


def use_stream(function: Any) -> list[Any]:
    async def run() -> list[Any]:
        async def result(awaitable: Any) -> Any:
            try:
                return await awaitable
            except BaseException as error:
                return type(error), str(error)

        one, two, three, four = function(3), function(3), function(3), function(3)
        sent = [await anext(one), await one.asend("a"), await one.athrow(KeyError("k"))]
        sent.append(await result(one.asend("stop")))
        closed = [await anext(two), await two.aclose(), await result(anext(two))]
        failed = [await anext(three), await result(three.athrow(ZeroDivisionError("z")))]
        never = [await four.aclose(), await result(anext(four))]
        return [sent, closed, failed, never]

    return asyncio.run(run())


def use_manager(function: Any) -> list[Any]:
    def block(error: Exception | None) -> Any:
        with function(3) as value:
            LOG.append(f"body {value}")
            if error is not None:
                raise error
        return value

    def result(error: Exception | None) -> Any:
        return _result(lambda: block(error))

    as_decorator = function(3)(lambda: "decorated")
    return [result(None), result(KeyError("k")), result(ValueError("v")), as_decorator()]


def use_async_manager(function: Any) -> list[Any]:
    async def block(error: Exception | None) -> Any:
        async with function(3) as value:
            LOG.append(f"body {value}")
            if error is not None:
                raise error
        return value

    def result(error: Exception | None) -> Any:
        return _result(lambda: asyncio.run(block(error)))

    return [result(None), result(KeyError("k")), result(ValueError("v"))]


USES: dict[Any, Callable[[Any], list[Any]]] = {
    plain: use_plain,
    coroutine: use_coroutine,
    old_coroutine: use_coroutine,
    generator: use_generator,
    stream: use_stream,
    manager: use_manager,
    async_manager: use_async_manager,
}
KINDS = pytest.mark.parametrize("kind", USES, ids=lambda kind: kind.__name__)
TESTS = (
    inspect.isroutine,
    inspect.iscoroutinefunction,
    inspect.isgeneratorfunction,
    inspect.isasyncgenfunction,
)


def _class_with(kind: Any, change: Decorator) -> type:
    """The kind as methods, which `change` decorates above and below what makes them so."""

    return type(
        "Owner",
        (),
        {
            "function": change(_as_method(kind)),
            "static_above": change(staticmethod(kind)),
            "static_below": staticmethod(change(kind)),
            "class_above": change(classmethod(_as_method(kind))),
            "class_below": classmethod(change(_as_method(kind))),
        },
    )


def _as_method(kind: Any) -> Any:
    """The function with a first argument more, of the same kind: as if written in a class."""
    source = inspect.getsource(kind).replace("(x: int", "(self: Any, x: int", 1)
    code = compile("from __future__ import annotations\n" + source, __file__, "exec")
    namespace: dict[str, Any] = {**globals(), "LOG": LOG}
    exec(code, namespace)
    return namespace[kind.__name__]


def _forms(kind: Any, change: Decorator) -> dict[str, Any]:
    """What is called in the same way, whatever it is: functions, methods, objects, partials."""
    owner = _class_with(kind, change)()
    undecorated = _class_with(kind, lambda each: each)()
    caller = type("Caller", (), {"__call__": _as_method(kind)})
    return {
        "function": change(kind),
        "method": owner.function,
        "static above": owner.static_above,
        "static below": owner.static_below,
        "static of the class": type(owner).static_above,
        "class above": owner.class_above,
        "class below": owner.class_below,
        "class of the class": type(owner).class_above,
        "bound method": change(undecorated.function),
        "bound class method": change(undecorated.class_above),
        "partial": change(functools.partial(kind, y=1)),
        "partial of a method": change(functools.partial(undecorated.function, y=1)),
        "object": change(caller()),
        "partial of an object": change(functools.partial(caller(), y=1)),
        "twice": change(change(kind)),
    }


@KINDS
def test_it_behaves_as_the_undecorated(decorator: Decorator, kind: Any) -> None:
    use = USES[kind]
    LOG.clear()
    expected, logged = use(kind), list(LOG)
    for form, function in _forms(kind, decorator).items():
        LOG.clear()
        assert use(function) == expected, form
        assert logged == LOG, form


@KINDS
def test_it_is_of_the_same_kind(decorator: Decorator, kind: Any) -> None:
    decorated = decorator(kind)
    for test in TESTS:
        assert test(decorated) == test(kind), test.__name__
    for name in ("__name__", "__qualname__", "__module__", "__doc__", "__annotations__"):
        assert getattr(decorated, name) == getattr(kind, name)
    assert inspect.unwrap(decorated) is inspect.unwrap(kind)
    assert decorated.__wrapped__ is kind or kind in (manager, async_manager)
    assert inspect.signature(decorated) == inspect.signature(kind)


@KINDS
def test_all_decorators_go_together(kind: Any) -> None:
    use = USES[kind]
    expected = use(kind)
    for order in (list(DECORATORS.values()), list(DECORATORS.values())[::-1]):
        decorated = functools.reduce(lambda inner, outer: outer(inner), order, kind)
        assert use(decorated) == expected


@KINDS
def test_it_is_pickled_by_its_name(
    decorator: Decorator, kind: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    decorated = decorator(kind)
    monkeypatch.setattr(sys.modules[__name__], kind.__name__, decorated)
    assert pickle.loads(pickle.dumps(decorated)) is decorated


def test_an_abstract_method_stays_one(decorator: Decorator) -> None:
    import abc

    class Base(abc.ABC):
        @decorator
        @abc.abstractmethod
        def work(self) -> None: ...

    with pytest.raises(TypeError, match="abstract"):
        Base()  # type: ignore[abstract]


def test_deep_recursion(decorator: Decorator) -> None:
    @decorator
    def down(n: int) -> int:
        return 0 if n == 0 else 1 + int(down(n - 1))

    @decorator
    def steps(n: int) -> Iterator[int]:
        yield n
        if n:
            yield from steps(n - 1)

    depth = sys.getrecursionlimit() // 4
    assert down(depth) == depth
    assert list(steps(depth // 2)) == list(range(depth // 2, -1, -1))
    with pytest.raises(RecursionError):
        down(10**9)
    assert down(3) == 3


@pytest.mark.slow
def test_a_generator_keeps_nothing_that_it_gave(decorator: Decorator) -> None:
    class Batch:
        pass

    @decorator
    def batches() -> Iterator[Batch]:
        while True:
            with contextlib.suppress(KeyError):
                yield Batch()

    numbers = batches()
    gone = weakref.ref(next(numbers))
    gc.collect()
    assert gone() is None
    error: Any = KeyError("k")
    error.mark = Batch()
    gone = weakref.ref(error.mark)
    numbers.throw(error)
    del error
    gc.collect()
    assert gone() is None


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (Path, "cannot decorate the class Path; decorate its methods"),
        (3, "decorates functions, not 3"),
        (property(len), "decorates functions, not <property"),
    ],
)
def test_what_is_no_function_is_refused(decorator: Decorator, given: Any, text: str) -> None:
    with pytest.raises(TypeError, match=text):
        decorator(given)


# --- what the time of a generator is ---


def test_a_manager_is_a_stage_from_its_entry_to_its_exit(profile: Any) -> None:
    @MyTimer().time_stage("managed")
    @contextlib.contextmanager
    def managed() -> Iterator[None]:
        yield

    with managed():
        assert [row.kind for row in profile.rows()] == ["ASYNC_START"]
    assert [row.kind for row in profile.rows()] == ["ASYNC_START", "ASYNC_END"]


def test_a_manager_is_timed_without_its_block() -> None:
    manager = TimeManager()

    @timer_wrap("managed")
    @contextlib.contextmanager
    def managed() -> Iterator[None]:
        yield

    with manager.enable_timer():
        around = time.perf_counter()
        with managed():
            block = time.perf_counter()
            time.sleep(0.2)
            block = time.perf_counter() - block
        around = time.perf_counter() - around
    [seconds] = manager.records["managed"]
    assert 0 < seconds <= around - block
