"""Capture windows: what opens and closes them, against a model, and what users rely on."""

from __future__ import annotations

import asyncio
import dataclasses
import gc
import logging
import multiprocessing
import os
import pickle
import subprocess
import sys
import threading
import types
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest
from hypothesis import settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from my_utils.profiling.backends import CaptureBackend, MultiBackend, NoOpBackend
from my_utils.profiling.capture_controller import (
    CaptureController,
    CaptureSpec,
    CaptureState,
    HookEvent,
)

from ...support.capture_model import Event, Model

pytestmark = pytest.mark.no_torch

ROOT = Path(__file__).resolve().parents[3]


class Recorder(CaptureBackend):
    """Notes what it is asked to do."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, str]] = []

    def start_window(self, window_id: str) -> None:
        self.calls.append(("start", window_id))

    def stop_window(self, window_id: str) -> None:
        self.calls.append(("stop", window_id))


@pytest.fixture
def backend() -> Recorder:
    return Recorder()


@pytest.fixture
def controller(backend: Recorder) -> CaptureController:
    return CaptureController(backend)


def window(**fields: Any) -> dict[str, Any]:
    return {"window_id": "w", "start_profile_names": ["f"], **fields}


def state_of(controller: CaptureController) -> str:
    return controller.state.value


def call(controller: CaptureController, name: str = "f", **meta: Any) -> None:
    with controller.hook(name, **meta):
        pass


# --- against the model ---

NAMES = st.sampled_from(["f", "g", "h"])
NUMBERS = st.one_of(st.none(), st.integers(0, 3))
EDGES = st.sampled_from(["ENTER", "EXIT"])


@st.composite
def specs(draw: st.DrawFn) -> dict[str, Any]:
    policy = draw(st.sampled_from(["MANUAL", "ON_TRIGGER_FUNC_EXIT", "ON_STOP_PROFILE_NAME"]))
    start, stop = draw(NUMBERS), draw(NUMBERS)
    if policy == "ON_STOP_PROFILE_NAME" and start is not None and stop is not None:
        start, stop = min(start, stop), max(start, stop)
    return {
        "window_id": draw(st.sampled_from(["a", "b", "c"])),
        "start_profile_names": draw(st.lists(NAMES, min_size=1, max_size=2, unique=True)),
        "start_iter": start,
        "start_mb": draw(NUMBERS),
        "start_edge": "ENTER" if policy == "ON_TRIGGER_FUNC_EXIT" else draw(EDGES),
        "stop_profile_names": draw(st.lists(NAMES, min_size=1, max_size=2, unique=True)),
        "stop_iter": stop,
        "stop_mb": draw(NUMBERS),
        "stop_edge": draw(EDGES),
        "stop_policy": policy,
        "roles": draw(st.one_of(st.none(), st.just(["actor"]))),
        "ranks": draw(st.one_of(st.none(), st.just([0, 1]))),
        "max_iters": draw(st.sampled_from([1, 2, 3, 100])),
    }


class Windows(RuleBasedStateMachine):
    """The C engine and the model see the same events."""

    @initialize()
    def begin(self) -> None:
        self.log: list[tuple[str, str]] = []
        self.model = Model()
        machine = self

        class Logged(CaptureController):
            def _open(self, window_id: str) -> bool:
                machine.log.append(("start", window_id))
                return True

            def _close(self, window_id: str) -> None:
                machine.log.append(("stop", window_id))

            def _ended(self, window_id: str, outcome: str) -> None:
                machine.ended.append((outcome, window_id))

        self.ended: list[tuple[str, str]] = []
        self.controller = Logged(NoOpBackend())

    def settle(self) -> None:
        """Outcomes of one event may come in any order."""
        self.log += sorted(self.ended)
        self.ended.clear()

    @rule(spec=specs())
    def arm(self, spec: dict[str, Any]) -> None:
        if self.model.arm(spec):
            self.controller.arm(spec)
        else:
            with pytest.raises(RuntimeError):
                self.controller.arm(spec)
        self.settle()

    @rule(name=st.sampled_from(["a", "b", "c"]))
    def disarm(self, name: str) -> None:
        self.model.disarm(name)
        self.controller.disarm(name)
        self.settle()

    @rule(
        name=NAMES,
        iteration=NUMBERS,
        mb=NUMBERS,
        role=st.sampled_from([None, "actor", "critic"]),
        rank=st.sampled_from([None, 0, 5]),
        ends=st.booleans(),
        raised=st.booleans(),
    )
    def report(
        self,
        name: str,
        iteration: int | None,
        mb: int | None,
        role: str | None,
        rank: int | None,
        ends: bool,
        raised: bool,
    ) -> None:
        event = HookEvent(name, {"iter": iteration, "microbatch_index": mb}, role, rank)
        same = Event(name, iteration, mb, role, rank)
        if ends:
            self.model.exit(same, raised)
            self.controller.on_exit(event, raised)
        else:
            self.model.enter(same)
            self.controller.on_enter(event)
        self.settle()

    @invariant()
    def agree(self) -> None:
        if not hasattr(self, "model"):
            return
        assert self.log == self.model.log
        opened = self.model.open
        assert self.controller.window == (None if opened is None else opened.spec["window_id"])
        armed = sorted(item.spec["window_id"] for item in self.model.armed)
        assert sorted(self.controller.armed) == armed


TestWindows = Windows.TestCase
TestWindows.settings = settings(max_examples=150, stateful_step_count=30, deadline=None)


# --- policies ---


def test_the_window_of_the_example(controller: CaptureController, backend: Recorder) -> None:
    controller.arm({
        "window_id": "w1",
        "start_profile_names": ["generator.forward"],
        "start_iter": 10,
        "start_mb": 0,
        "stop_profile_names": ["generator.forward"],
        "stop_iter": 10,
        "stop_mb": 0,
        "stop_policy": "ON_TRIGGER_FUNC_EXIT",
        "stop_edge": "EXIT",
    })  # fmt: skip
    event = HookEvent(
        profile_name="generator.forward",
        meta={"iter": 10, "microbatch_index": 0},
        role="generator",
        rank=0,
    )
    controller.on_enter(event)
    assert backend.calls == [("start", "w1")]
    assert state_of(controller) == "capturing"
    controller.on_exit(event)
    assert backend.calls == [("start", "w1"), ("stop", "w1")]
    assert state_of(controller) == "idle"
    assert controller.outcomes == {"w1": "done"}


def test_recursive_calls_of_the_trigger_are_counted(
    controller: CaptureController, backend: Recorder
) -> None:
    controller.arm(window())
    with controller.hook("f"):
        with controller.hook("f"), controller.hook("g"):
            pass
        assert controller.window == "w"
    assert backend.calls == [("start", "w"), ("stop", "w")]


def test_calls_of_another_thread_do_not_close_it(controller: CaptureController) -> None:
    controller.arm(window())
    with controller.hook("f"):
        other = threading.Thread(target=call, args=(controller,))
        other.start()
        other.join()
        assert controller.window == "w"
    assert controller.outcomes == {"w": "done"}


def test_an_exception_closes_it_and_goes_on(controller: CaptureController) -> None:
    controller.arm(window(stop_policy="MANUAL"))
    with pytest.raises(KeyError, match="mine"), controller.hook("f"):
        raise KeyError("mine")
    assert controller.outcomes == {"w": "raised"}


def test_another_function_stops_it(controller: CaptureController, backend: Recorder) -> None:
    controller.arm(window(stop_profile_names=["g"], stop_iter=2, start_iter=1))
    for step in range(4):
        call(controller, "f", iter=step)
        call(controller, "g", iter=step)
        assert (controller.window == "w") == (step == 1)
    assert backend.calls == [("start", "w"), ("stop", "w")]


def test_a_stop_that_was_missed_closes_it_late(
    controller: CaptureController, caplog: pytest.LogCaptureFixture
) -> None:
    controller.arm(window(stop_profile_names=["g"], stop_iter=2))
    call(controller, "f")
    call(controller, "g", iter=5)
    assert controller.outcomes == {"w": "overrun"}
    assert "its stop iteration was over" in caplog.text


def test_arming_too_late_is_told(
    controller: CaptureController, backend: Recorder, caplog: pytest.LogCaptureFixture
) -> None:
    controller.arm(window(start_iter=3))
    call(controller, iter=7)
    assert (controller.outcomes, backend.calls) == ({"w": "late"}, [])
    assert "its start iteration was over" in caplog.text


def test_windows_that_overlap(controller: CaptureController, backend: Recorder) -> None:
    controller.arm(window())
    controller.arm(window(window_id="inner", start_profile_names=["g"]))
    with controller.hook("f"):
        call(controller, "g")
    assert controller.outcomes == {"inner": "overlapped", "w": "done"}
    assert backend.calls == [("start", "w"), ("stop", "w")]


def test_one_window_closes_where_the_next_opens(
    controller: CaptureController, backend: Recorder
) -> None:
    controller.arm(window(stop_profile_names=["g"], stop_edge="ENTER"))
    controller.arm(window(window_id="next", start_profile_names=["g"]))
    call(controller, "f")
    call(controller, "g")
    assert backend.calls == [("start", "w"), ("stop", "w"), ("start", "next"), ("stop", "next")]


def test_arming_again(controller: CaptureController, backend: Recorder) -> None:
    controller.arm(window(start_iter=1))
    controller.arm(window(start_iter=2))
    assert controller.armed == ["w"]
    call(controller, iter=2)
    assert backend.calls == [("start", "w"), ("stop", "w")]
    controller.arm(window())
    with controller.hook("f"), pytest.raises(RuntimeError, match="is open"):
        controller.arm(window())


def test_of_two_that_could_open_the_first_armed_does(
    controller: CaptureController, backend: Recorder
) -> None:
    for name in ("a", "b", "a", "a"):  # the places of windows that are gone are used again
        controller.arm(window(window_id=name))
    call(controller)
    assert backend.calls == [("start", "b"), ("stop", "b")]
    assert controller.outcomes == {"a": "overlapped", "b": "done"}


def test_disarm_closes_what_is_open(controller: CaptureController, backend: Recorder) -> None:
    controller.arm(window())
    controller.arm(window(window_id="other"))
    with controller.hook("f"):
        assert controller.disarm()
        assert controller.state is CaptureState.IDLE
    assert backend.calls == [("start", "w"), ("stop", "w")]
    assert not controller.disarm()
    assert not controller.disarm("unknown")


def test_more_windows_than_there_is_room_for(controller: CaptureController) -> None:
    for number in range(64):
        controller.arm(window(window_id=str(number)))
    with pytest.raises(RuntimeError, match="64"):
        controller.arm(window())


# --- trouble ---


class Broken(Recorder):
    def __init__(self, where: str) -> None:
        super().__init__()
        self.where = where

    def start_window(self, window_id: str) -> None:
        super().start_window(window_id)
        if self.where == "start":
            raise OSError("no profiler")

    def stop_window(self, window_id: str) -> None:
        super().stop_window(window_id)
        if self.where == "stop":
            raise OSError("no profiler")


def test_a_backend_that_cannot_start_is_not_stopped(caplog: pytest.LogCaptureFixture) -> None:
    backend = Broken("start")
    controller = CaptureController(backend)
    controller.arm(window())
    call(controller)
    assert backend.calls == [("start", "w")]
    assert controller.outcomes == {"w": "failed"}
    assert "no profiler" in caplog.text


def test_a_backend_that_cannot_stop_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    controller = CaptureController(Broken("stop"))
    controller.arm(window())
    call(controller)
    assert controller.outcomes == {"w": "failed"}
    assert controller.state_of("w") == "failed: OSError: no profiler"
    assert "no profiler" in caplog.text


def test_a_window_that_is_closed_before_its_end_and_cannot_stop() -> None:
    controller = CaptureController(Broken("stop"))
    with controller:
        controller.arm(window())
        controller.on_enter(HookEvent("f", {"iter": 0}))
        assert controller.window == "w"
    assert controller.state_of("w") == "failed: OSError: no profiler"
    controller.arm(window())
    assert controller.state_of("w") == "armed"


def test_an_interrupt_in_the_backend_goes_on() -> None:
    class Interrupted(Recorder):
        def start_window(self, window_id: str) -> None:
            raise KeyboardInterrupt

    controller = CaptureController(Interrupted())
    controller.arm(window())
    with pytest.raises(KeyboardInterrupt):
        controller.on_enter(HookEvent("f"))
    assert controller.state is CaptureState.IDLE


def test_hooks_inside_the_backend_are_left_out() -> None:
    class Nested(Recorder):
        def start_window(self, window_id: str) -> None:
            super().start_window(window_id)
            call(nested)
            with pytest.raises(RuntimeError, match="profiler starts or stops"):
                nested.disarm()

    backend = Nested()
    nested = CaptureController(backend)
    nested.arm(window())
    call(nested)
    assert backend.calls == [("start", "w"), ("stop", "w")]


def test_threads_that_open_and_close_at_once() -> None:
    backend = Recorder()
    controller = CaptureController(backend)

    def work(number: int) -> None:
        for lap in range(300):
            with controller.hook(f"f{number}", iter=lap):
                pass
            if lap % 3 == 0:
                controller.arm(window(window_id=str(number), start_profile_names=[f"f{number}"]))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    controller.disarm()
    for start, stop in zip(backend.calls[::2], backend.calls[1::2], strict=True):
        assert (start[0], stop[0], start[1]) == ("start", "stop", stop[1])


def test_a_forked_child_has_no_window(controller: CaptureController, backend: Recorder) -> None:
    controller.arm(window())
    with controller.hook("f"):
        child = os.fork()
        if child == 0:
            idle = controller.state is CaptureState.IDLE and not controller.disarm()
            os._exit(0 if idle and len(backend.calls) == 1 else 1)
        assert os.waitpid(child, 0)[1] == 0
    assert backend.calls == [("start", "w"), ("stop", "w")]


EXIT = """
from my_utils.profiling.backends import CaptureBackend
from my_utils.profiling.capture_controller import CaptureController, HookEvent
class Loud(CaptureBackend):
    def start(self): print("start")
    def stop(self): print("stop")
controller = CaptureController(Loud())
controller.arm({"window_id": "w", "start_profile_names": ["f"], "stop_policy": "MANUAL"})
controller.on_enter(HookEvent("f"))
"""


def test_children_of_multiprocessing_close_theirs(tmp_path: Path) -> None:
    stopped = tmp_path / "stopped"

    class Noting(CaptureBackend):
        def stop(self) -> None:
            stopped.touch()

    def work() -> None:
        controller = CaptureController(Noting())  # nobody holds it at the end
        controller.arm(window(stop_policy="MANUAL"))
        call(controller)
        assert controller.window == "w"

    child = multiprocessing.get_context("fork").Process(target=work)
    child.start()
    child.join(60)
    assert (child.exitcode, stopped.exists()) == (0, True)


def test_an_open_window_is_closed_at_exit() -> None:
    done = subprocess.run(
        [sys.executable, "-c", EXIT], cwd=ROOT, capture_output=True, text=True, timeout=60,
        check=False,
    )  # fmt: skip
    assert (done.stdout, done.returncode) == ("start\nstop\n", 0), done.stderr


# --- arguments ---


def test_a_spec_as_an_object(controller: CaptureController) -> None:
    controller.arm(CaptureSpec(window_id="w", start_profile_names=["f"]))
    assert controller.armed == ["w"]


class TestHookEvent:
    def test_is_a_dataclass_to_others(self) -> None:
        event = HookEvent("f", {"iter": 1}, role="actor", rank=2)
        assert dataclasses.asdict(event) == {
            "profile_name": "f", "meta": {"iter": 1}, "role": "actor", "rank": 2,
        }  # fmt: skip
        assert dataclasses.replace(event, rank=3) == HookEvent("f", {"iter": 1}, "actor", 3)
        assert repr(event) == (
            "HookEvent(profile_name='f', meta={'iter': 1}, role='actor', rank=2)"
        )
        assert pickle.loads(pickle.dumps(event)) == event
        assert event != HookEvent("f")
        match event:
            case HookEvent(name, _, role, _):
                assert (name, role) == ("f", "actor")
        event.rank = 5
        assert event.rank == 5
        with pytest.raises(TypeError):
            hash(event)
        assert HookEvent.__annotations__["role"] == str | None

    def test_keywords_in_any_order(self) -> None:
        event = HookEvent(rank=1, role="r", profile_name="f")
        assert event == HookEvent("f", None, "r", 1)

    def test_that_becomes_another_class(self) -> None:
        class Bare(HookEvent):
            __slots__ = ()

        for number in range(100):
            event = HookEvent("f", {"iter": number})
            event.__class__ = Bare
            other = Bare("g", rank=number)
            other.__class__ = HookEvent  # type: ignore[assignment]
            assert HookEvent("h", role="r") == HookEvent("h", role="r")
            assert (event.meta, other.rank) == ({"iter": number}, number)

    def test_in_a_cycle(self) -> None:
        class Held:
            pass

        held = Held()
        meta: dict[str, Any] = {}
        event = HookEvent("f", meta)
        meta.update(event=event, held=held)
        gone = weakref.ref(held)
        del held, meta, event
        gc.collect()
        assert gone() is None

    def test_subclass(self, controller: CaptureController) -> None:
        class Mine(HookEvent):
            pass

        assert Mine("f", rank=1).rank == 1
        with pytest.raises(TypeError, match="rank must be int or None"):
            Mine("f", rank="1")  # type: ignore[arg-type]

        @dataclasses.dataclass
        class Tagged(HookEvent):
            tag: str = "train"

        event = Tagged("f", {"iter": 0}, tag="eval")  # type: ignore[call-arg, misc]
        assert repr(event).endswith("Tagged(profile_name='f', meta={'iter': 0}, role=None, "
                                    "rank=None, tag='eval')")  # fmt: skip
        controller.arm(window())
        controller.on_enter(event)
        assert controller.window == "w"
        with pytest.raises(TypeError, match="profile_name must be str"):
            controller.on_exit(Mine.__new__(Mine))


# --- functions and modules ---


class TestWrap:
    def test_a_function(self, controller: CaptureController) -> None:
        @controller.wrap("f", meta=lambda step: {"iter": step})
        def function(step: int) -> tuple[int, str | None]:
            """Its own text."""
            return step, controller.window

        controller.arm(window(start_iter=1))
        assert [function(step) for step in range(3)] == [(0, None), (1, "w"), (2, None)]
        assert function.__doc__ == "Its own text."

    def test_a_coroutine(self, controller: CaptureController) -> None:
        @controller.wrap("f")
        async def function() -> str | None:
            await asyncio.sleep(0)
            return controller.window

        controller.arm(window())
        assert asyncio.run(function()) == "w"
        assert controller.outcomes == {"w": "done"}

    def test_a_generator(self, controller: CaptureController) -> None:
        @controller.wrap("f")
        def function() -> Iterator[str | None]:
            yield controller.window

        controller.arm(window())
        items = function()
        assert controller.window is None
        assert list(items) == ["w"]
        assert controller.outcomes == {"w": "done"}

    def test_a_method_that_raises(self, controller: CaptureController) -> None:
        class Owner:
            @controller.wrap("f")
            def method(self) -> None:
                raise ValueError("mine")

        controller.arm(window())
        with pytest.raises(ValueError, match="mine"):
            Owner().method()
        assert controller.outcomes == {"w": "raised"}


def test_numbers_that_are_not_pythons(controller: CaptureController) -> None:
    numpy = pytest.importorskip("numpy", reason="numpy is not installed")
    controller.arm(window(start_iter=numpy.int64(3), ranks=[numpy.int32(0)]))
    controller.on_enter(HookEvent("f", {"iter": numpy.int64(3)}, rank=0))
    assert controller.window == "w"


class TestMultiBackend:
    def test_order(self) -> None:
        first, second = Recorder(), Recorder()
        both = MultiBackend([first, second])
        first.calls = second.calls
        both.start_window("w")
        both.stop_window("w")
        assert first.calls == [("start", "w")] * 2 + [("stop", "w")] * 2

    def test_an_object_with_start_and_stop_alone(self) -> None:
        class Own:
            calls: ClassVar[list[str]] = []

            def start(self) -> None:
                self.calls.append("start")

            def stop(self) -> None:
                self.calls.append("stop")

        with MultiBackend([Own()]):  # type: ignore[list-item]
            assert Own.calls == ["start"]
        assert Own.calls == ["start", "stop"]

    def test_one_that_cannot_start(self) -> None:
        first = Recorder()
        both = MultiBackend([first, Broken("start")])
        with pytest.raises(OSError, match="no profiler"):
            both.start_window("w")
        assert first.calls == [("start", "w"), ("stop", "w")]

    def test_one_that_cannot_record(self) -> None:
        """None of them does then, as where one cannot start; the next window is another try."""
        first, second = Recorder(), Recorder()
        second.not_recording = "another profiler was recording"
        controller = CaptureController(MultiBackend([first, second]))
        controller.arm(window())
        call(controller)
        assert controller.state_of("w") == "failed: another profiler was recording"
        assert first.calls == [("start", "w"), ("stop", "w")]
        assert second.calls == [("start", "w")]
        with MultiBackend([first, second]):
            pass
        assert first.calls[2:] == [("start", "window"), ("stop", "window")]
        assert second.calls[1:] == [("start", "window")]
        second.not_recording = None
        controller.arm(window())
        call(controller)
        assert controller.outcomes == {"w": "done"}

    def test_one_that_cannot_stop(self) -> None:
        first = Recorder()
        both = MultiBackend([first, Broken("stop")])
        both.start_window("w")
        with pytest.raises(OSError, match="no profiler"):
            both.stop_window("w")
        assert first.calls == [("start", "w"), ("stop", "w")]


def test_messages_go_to_the_given_logger(
    backend: Recorder, caplog: pytest.LogCaptureFixture
) -> None:
    logger = logging.getLogger("mine")
    controller = CaptureController(backend, logger=logger)
    controller.arm(window())
    with caplog.at_level(logging.INFO):
        call(controller)
    assert {record.name for record in caplog.records} == {"mine"}


def test_a_long_run_keeps_the_newest_outcomes() -> None:
    controller = CaptureController(NoOpBackend())
    for step in range(1100):
        window = f"w{step}"
        controller.arm({"window_id": window, "start_profile_names": ["f"], "start_iter": step})
        with controller.hook("f", iter=step):
            pass
        controller.note(f"w{step}", "a note")
    assert list(controller.outcomes) == [f"w{step}" for step in range(100, 1100)]
    assert controller.state_of("w99") == "unknown"
    assert controller.state_of("w1099") == "done: a note"


# --- the two shapes of a window ---


def test_every_field_of_a_description_is_read() -> None:
    """What a window starts stays in Python; all else is the engine's."""
    spec = CaptureSpec(window_id="w", start_profile_names=["f"])
    of_python = {"nvtx", "backend"}
    for field in dataclasses.fields(spec):
        windows = CaptureController(NoOpBackend())
        fields = {one.name: getattr(spec, one.name) for one in dataclasses.fields(spec)}
        del fields[field.name]
        lacks: Any = types.SimpleNamespace(**fields)
        if field.name in of_python:
            windows.arm_spec(lacks)
            continue
        with pytest.raises(AttributeError, match=field.name):
            windows.arm_spec(lacks)
        assert windows.armed == []


# --- as others call it ---


def test_fields_of_others(controller: CaptureController, backend: Recorder) -> None:
    controller.arm(window(expected_role="actor", ranks_filter=[3], enable_nvtx_window=True))
    with controller.hook("f", role="critic", rank=3), controller.hook("f", role="actor", rank=0):
        assert state_of(controller) == "armed"
    with controller.hook("f", role="actor", rank=3):
        assert state_of(controller) == "capturing"
    controller.arm(window(expected_role=None, ranks_filter=None))
    call(controller)
    assert controller.outcomes["w"] == "done"


def test_nvtx_windows_of_others_say_what_to_use(backend: Recorder) -> None:
    CaptureController(backend, enable_nvtx_window=False, nvtx_domain=None)  # type: ignore[call-arg]
