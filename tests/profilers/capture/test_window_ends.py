"""When a window ends: with its own call, whatever else runs, and never later than its bound."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import gc
import logging
import threading
from collections.abc import Generator, Iterator
from typing import Any

import pytest

from my_utils.core import warnings as _warnings
from my_utils.profiling.backends import CaptureBackend, NoOpBackend
from my_utils.profiling.capture_controller import (
    CaptureController,
    HookEvent,
    capture_hook,
    set_default_controller,
)

pytestmark = [pytest.mark.c_code, pytest.mark.no_torch]


@pytest.fixture
def controller() -> Iterator[CaptureController]:
    controller = CaptureController(NoOpBackend())
    yield controller
    controller.close()


def window(**fields: Any) -> dict[str, Any]:
    return {"window_id": "w", "start_profile_names": ["f"], **fields}


def event(iteration: int | None = None, name: str = "f", **fields: Any) -> HookEvent:
    return HookEvent(name, {} if iteration is None else {"iter": iteration}, **fields)


def in_thread(work: Any) -> None:
    """With a context of its own, which threads have by default only where there is a GIL."""
    thread = threading.Thread(target=contextvars.Context().run, args=(work,))
    thread.start()
    thread.join()


def test_ten_overlapping_calls(controller: CaptureController) -> None:
    """The window of the first ends with the first, and not with the last."""
    ended: list[tuple[int, str | None]] = []

    @controller.wrap("f", meta=lambda number, _: {"iter": number})
    async def work(number: int, gate: asyncio.Event) -> None:
        await gate.wait()

    async def run() -> None:
        gates = [asyncio.Event() for _ in range(10)]
        tasks = [asyncio.create_task(work(number, gate)) for number, gate in enumerate(gates)]
        await asyncio.sleep(0)
        for number in (7, 3, 0, 9, 1, 2, 4, 5, 6, 8):
            gates[number].set()
            await tasks[number]
            ended.append((number, controller.window))

    controller.arm(window(start_iter=0))
    asyncio.run(run())
    assert ended[:3] == [(7, "w"), (3, "w"), (0, None)]
    assert controller.outcomes == {"w": "done"}


def test_an_end_in_another_thread(controller: CaptureController) -> None:
    controller.arm(window())
    begun = event(1)
    controller.on_enter(begun)
    in_thread(lambda: controller.on_exit(event(1)))  # of some other call
    assert controller.window == "w"
    in_thread(lambda: controller.on_exit(begun))
    assert controller.outcomes == {"w": "done"}


def test_an_end_in_a_task_of_the_call(controller: CaptureController) -> None:
    async def finish() -> None:
        controller.on_exit(event(1))

    async def run() -> None:
        controller.on_enter(event(1))
        await asyncio.create_task(finish())

    controller.arm(window())
    asyncio.run(run())
    assert controller.outcomes == {"w": "done"}


@pytest.mark.parametrize("how", ["thread", "task", "kept task", "loop"])
def test_an_opener_that_died(how: str, controller: CaptureController) -> None:
    """It never reports its end, and the next event shows that."""

    async def run() -> list[object]:
        async def opener() -> None:
            controller.on_enter(event(1))

        kept = asyncio.create_task(opener())
        await kept
        return [kept] if how == "kept task" else []

    controller.arm(window())
    kept: list[object] = []
    if how == "thread":
        in_thread(lambda: controller.on_enter(event(1)))
    elif how == "loop":
        with contextlib.suppress(ValueError):
            controller.on_enter(event(1))
            raise ValueError
    else:
        kept = asyncio.run(run())
        gc.collect()
    assert controller.window == "w"
    controller.on_enter(event(2, "f" if how == "loop" else "g"))
    assert controller.outcomes == {"w": "abandoned"}, kept


def test_a_shared_event_of_overlapping_calls(controller: CaptureController) -> None:
    """A framework may make one event for all calls of a function."""
    shared = event()
    seen: list[str | None] = []

    async def call(gate: asyncio.Event) -> None:
        controller.on_enter(shared)
        await gate.wait()
        controller.on_exit(shared)
        seen.append(controller.window)

    async def run() -> None:
        gates = [asyncio.Event() for _ in range(3)]
        tasks = [asyncio.create_task(call(gate)) for gate in gates]
        await asyncio.sleep(0)
        for number in (2, 0, 1):
            gates[number].set()
            await tasks[number]

    controller.arm(window())
    asyncio.run(run())
    assert seen == ["w", None, None]


def test_blocks_of_one_hook_that_overlap(controller: CaptureController) -> None:
    """In generators, which share a context, and in threads: each leaves its own block."""
    hook = capture_hook("f")
    before = set_default_controller(controller)

    def block() -> Generator[None, None, None]:
        with hook:
            yield

    try:
        controller.arm(window())
        first, second = block(), block()
        next(first)
        next(second)
        next(first, None)
        assert controller.outcomes == {"w": "done"}
        second.close()

        controller.arm(window(window_id="x"))
        with contextlib.ExitStack() as stack:
            stack.enter_context(hook)
            in_thread(lambda: list(block()))
            assert controller.window == "x"
        assert controller.outcomes["x"] == "done"
    finally:
        set_default_controller(before)


# --- bounds ---


def test_a_stop_that_is_never_called(
    controller: CaptureController, caplog: pytest.LogCaptureFixture
) -> None:
    _warnings.forget("capture_name:rollout.finnish")
    controller.arm(window(start_iter=1, stop_iter=1, stop_profile_names=["rollout.finnish"]))
    seen = []
    for step in range(6):
        with controller.hook("f", iter=step), controller.hook("rollout.finish", iter=step):
            seen.append(controller.window)
    assert seen == [None, "w", "w", None, None, None]
    assert controller.outcomes == {"w": "overrun"}
    assert caplog.text.count("no hook of this process has reported 'rollout.finnish'") == 1
    assert "rollout.finish" in caplog.text.partition("it knows ")[2]  # and other tests'
    assert controller.state_of("w") == "overrun: no hook has reported 'rollout.finnish'"


def test_a_name_that_is_likely_misspelt_is_told_at_once(
    controller: CaptureController, caplog: pytest.LogCaptureFixture
) -> None:
    _warnings.forget("capture_name:mark.forwrad")
    controller.wrap("mark.forward")
    controller.arm(window(start_profile_names=["mark.forwrad"]))
    controller.arm(window(start_profile_names=["mark.forwrad"]))
    assert caplog.text.count("'mark.forwrad', which a capture window waits for; is it") == 1
    assert "is it 'mark.forward'?" in caplog.text


@pytest.mark.parametrize("policy", ["MANUAL", "ON_STOP_PROFILE_NAME"])
@pytest.mark.parametrize("names_iterations", [True, False])
def test_every_window_is_bounded(
    policy: str, names_iterations: bool, controller: CaptureController
) -> None:
    spec = window(stop_policy=policy, stop_profile_names=["never"], max_iters=3)
    controller.arm(spec)
    seen = []
    for step in range(6):
        with controller.hook("f", iter=step if names_iterations else None):
            seen.append(controller.window)
    assert seen == ["w", "w", "w", None, None, None]
    assert controller.outcomes == {"w": "overrun"}


def test_a_later_call_of_the_stop_does_not_overtake(controller: CaptureController) -> None:
    """Iterations overlap: the stop of iteration 2 ends while that of iteration 1 runs."""
    controller.arm(window(start_iter=1, stop_profile_names=["g"], stop_iter=1))
    with controller.hook("f", iter=1):
        pass
    stop, later = event(1, "g"), event(2, "g")
    controller.on_enter(stop)
    controller.on_enter(later)
    controller.on_exit(later)
    assert controller.window == "w"
    controller.on_exit(stop)
    assert controller.outcomes == {"w": "done"}


# --- what is wrong never reaches the training ---


@pytest.mark.parametrize("found", [3.0, "3", True, None, [3]])
def test_an_iteration_that_is_none(
    found: Any, controller: CaptureController, caplog: pytest.LogCaptureFixture
) -> None:
    _warnings.forget("capture_event")
    controller.arm(window(start_iter=3))
    for _ in range(2):
        with controller.hook("f", iter=found, microbatch_index=found):
            assert controller.window is None
    assert caplog.text.count("meta['iter'] must be int") == (found is not None)


def raising(*_: object) -> dict[str, Any]:
    raise KeyError("batch")


@pytest.mark.parametrize(
    "meta", [raising, lambda: 5, lambda: [1], lambda: None, lambda: {"role": "r", "rank": "x"}]
)
def test_meta_that_is_wrong(
    meta: Any, controller: CaptureController, caplog: pytest.LogCaptureFixture
) -> None:
    _warnings.forget("capture_meta:f")
    before = set_default_controller(controller)
    controller.arm(window())
    try:
        assert controller.wrap("f", meta=meta)(lambda: 7)() == 7
        assert capture_hook("f", meta=meta)(lambda: 8)() == 8
    finally:
        set_default_controller(before)
    assert controller.outcomes == {"w": "done"}
    is_wrong = meta() not in (None, {"role": "r", "rank": "x"}) if meta is not raising else True
    assert caplog.text.count("its meta function gave no mapping") == is_wrong


def test_why_a_window_failed(
    controller: CaptureController, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken(CaptureBackend):
        def start(self) -> None:
            raise OSError("no profiler")

    controller.backend = Broken()
    caplog.set_level(logging.CRITICAL)
    controller.arm(window(start_profile_names=["fails"]))
    assert controller.state_of("w") == "armed: no hook has reported 'fails'"
    with controller.hook("fails"):
        pass
    assert controller.state_of("w") == "failed: OSError: no profiler"
    assert controller.state_of("x") == "unknown"
