"""`capture_hook`: a decorator and a block that report to the controller of the process."""

from __future__ import annotations

import asyncio
import os
import pickle
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from my_utils.profiling.backends import (
    CaptureBackend,
    CudaProfilerBackend,
    MemorySnapshotBackend,
    MultiBackend,
    NoOpBackend,
    TorchProfilerBackend,
    make_backend,
)
from my_utils.profiling.capture_controller import (
    CaptureController,
    capture_hook,
    default_controller,
    set_default_controller,
    set_position,
)

pytestmark = [pytest.mark.c_code, pytest.mark.no_torch]


class Recorder(CaptureBackend):
    """Notes what happens, the work of functions too."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def start_window(self, window_id: str) -> None:
        self.calls.append("start")

    def stop_window(self, window_id: str) -> None:
        self.calls.append("stop")


@pytest.fixture
def backend() -> Recorder:
    return Recorder()


@pytest.fixture
def controller(backend: Recorder) -> Iterator[CaptureController]:
    controller = CaptureController(backend)
    before = set_default_controller(controller)
    yield controller
    set_default_controller(before)
    set_position(None)
    controller.disarm()


def window(**fields: Any) -> dict[str, Any]:
    return {"window_id": "w", "start_profile_names": ["f"], **fields}


def test_a_function(controller: CaptureController, backend: Recorder) -> None:
    @capture_hook("f", meta=lambda step, scale: {"iter": step})
    def double(step: int, scale: int) -> int:
        """Doubles."""
        backend.calls.append(f"step {step}")
        return step * scale

    assert (double.__name__, double.__doc__) == ("double", "Doubles.")
    controller.arm(window(start_iter=1))
    assert [double(step, scale=2) for step in range(3)] == [0, 2, 4]
    assert backend.calls == ["step 0", "start", "step 1", "stop", "step 2"]
    assert controller.outcomes == {"w": "done"}


def test_a_block(controller: CaptureController, backend: Recorder) -> None:
    controller.arm(window(start_iter=1, start_mb=2))
    for step in range(2):
        for number in range(3):
            with capture_hook("f", iter=step, microbatch_index=number):
                backend.calls.append(f"{step} {number}")
    assert backend.calls[-3:] == ["start", "1 2", "stop"]


def test_the_position_of_the_process(controller: CaptureController, backend: Recorder) -> None:
    @capture_hook("f")
    def work() -> None:
        backend.calls.append("work")

    controller.arm(window(start_iter=2, start_mb=1))
    for step in range(4):
        for number in range(2):
            set_position(step, number)
            work()
    assert backend.calls.index("start") == 5  # two calls each of steps 0 and 1, one of step 2


def test_role_and_rank_of_the_process(backend: Recorder, controller: CaptureController) -> None:
    set_default_controller(controller, role="actor", rank=3)
    controller.arm(window(roles=["critic"]))
    controller.arm(window(window_id="w2", roles=["actor"], ranks=[3]))
    with capture_hook("f"):
        assert controller.window == "w2"
    with capture_hook("f", role="critic", rank=0):
        assert controller.window == "w"


def test_the_rank_is_the_launchers(
    controller: CaptureController, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "5")
    set_default_controller(controller)
    controller.arm(window(ranks=[5]))
    with capture_hook("f"):
        assert controller.window == "w"


@pytest.mark.parametrize("kind", ["plain", "method", "generator", "coroutine", "async generator"])
def test_kinds_of_functions(kind: str, controller: CaptureController, backend: Recorder) -> None:
    class Model:
        @capture_hook("f")
        def method(self) -> None:
            backend.calls.append("work")

    @capture_hook("f")
    def generator() -> Iterator[int]:
        backend.calls.append("work")
        yield 1

    @capture_hook("f")
    async def coroutine() -> None:
        backend.calls.append("work")

    @capture_hook("f")
    async def async_generator() -> AsyncIterator[int]:
        backend.calls.append("work")
        yield 1

    async def drain() -> list[int]:
        return [item async for item in async_generator()]

    def run() -> None:
        if kind == "plain":
            capture_hook("f")(lambda: backend.calls.append("work"))()
        elif kind == "method":
            Model().method()
        elif kind == "generator":
            assert list(generator()) == [1]
        elif kind == "coroutine":
            asyncio.run(coroutine())
        else:
            assert asyncio.run(drain()) == [1]

    controller.arm(window())
    run()
    assert backend.calls == ["start", "work", "stop"]
    set_default_controller(None)
    run()
    assert backend.calls[3:] == ["work"]


@pytest.mark.parametrize("how", ["decorator", "block"])
def test_an_exception_goes_through_and_closes(
    how: str, controller: CaptureController, backend: Recorder
) -> None:
    error = KeyboardInterrupt()

    def work() -> None:
        raise error

    controller.arm(window())
    with pytest.raises(KeyboardInterrupt) as caught:
        if how == "decorator":
            capture_hook("f")(work)()
        else:
            with capture_hook("f"):
                work()
    assert caught.value is error
    assert backend.calls == ["start", "stop"]
    assert controller.outcomes == {"w": "raised"}


def test_nested_calls_and_threads_share_a_hook(
    controller: CaptureController, backend: Recorder
) -> None:
    hook = capture_hook("f")

    def nest(depth: int) -> None:
        with hook:
            if depth:
                nest(depth - 1)

    controller.arm(window())
    nest(5)
    assert backend.calls == ["start", "stop"]
    threads = [threading.Thread(target=nest, args=(20,)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert hook._entered == []


def test_without_a_controller_nothing_is_made() -> None:
    assert default_controller() is None
    asked: list[int] = []

    def meta() -> dict[str, Any]:
        asked.append(1)
        return {}

    @capture_hook("f", meta=meta)
    def work() -> int:
        return 7

    assert work() == 7
    with capture_hook("f"):
        pass
    assert asked == []


@pytest.mark.parametrize("is_set", [False, True])
def test_a_function_for_the_meta_of_a_block_raises_at_once(
    controller: CaptureController, is_set: bool
) -> None:
    set_default_controller(controller if is_set else None)
    block = capture_hook("f", meta=lambda: {"iter": 1})
    with pytest.raises(TypeError, match="meta is for a decorated function; give a block"), block:
        pytest.fail("the block ran")


def test_the_end_goes_to_the_controller_of_the_beginning(
    controller: CaptureController, backend: Recorder
) -> None:
    controller.arm(window())
    with capture_hook("f"):
        set_default_controller(CaptureController(NoOpBackend()))
    assert backend.calls == ["start", "stop"]


def test_a_marked_function_is_shipped_by_value(
    controller: CaptureController, backend: Recorder
) -> None:
    """As Ray does; the process that gets it has its own controller."""
    cloudpickle = pytest.importorskip("cloudpickle", reason="cloudpickle is not installed")

    def forward() -> str:
        return "forward"

    forward.__module__ = "__main__"
    shipped = pickle.loads(cloudpickle.dumps(capture_hook("f")(forward)))
    controller.arm(window())
    assert shipped() == "forward"
    assert backend.calls == ["start", "stop"]


# --- the backend of a window, by the name of its tool ---


def test_a_backend_by_its_tool(tmp_path: os.PathLike[str]) -> None:
    for tool in ("nsys", "ncu", "cuda"):
        backend = make_backend(tool, options={tool: {"synchronize": False}})
        assert isinstance(backend, CudaProfilerBackend) and not backend.synchronize
    backend = make_backend("torch", tmp_path, {"torch": {"with_stack": True}}, rank=2)
    assert isinstance(backend, TorchProfilerBackend)
    assert (backend.rank, backend.options) == (2, {"with_stack": True})
    backend = make_backend("torch_memory", tmp_path, {"torch_memory": {"max_entries": 5}})
    assert isinstance(backend, MemorySnapshotBackend) and backend.max_entries == 5
    assert isinstance(make_backend("none"), NoOpBackend)
    several = make_backend(["nsys", "torch"], tmp_path)
    assert isinstance(several, MultiBackend) and len(several.backends) == 2


def test_a_window_with_a_backend_of_its_own(
    controller: CaptureController, backend: Recorder
) -> None:
    controller.arm(window(backend={"tool": "none"}))
    controller.arm(window(window_id="w2", start_iter=2, backend={"tool": "none"}))
    controller.arm(window(window_id="w3", start_iter=3))
    for step in (1, 2, 3):
        with capture_hook("f", iter=step):
            pass
    assert controller.outcomes == {"w": "done", "w2": "done", "w3": "done"}
    assert backend.calls == ["start", "stop"]


def test_a_window_that_is_open_keeps_its_spec(
    controller: CaptureController, backend: Recorder
) -> None:
    controller.arm(window())
    with capture_hook("f"), pytest.raises(RuntimeError):
        controller.arm(window(backend={"tool": "none"}))
    assert backend.calls == ["start", "stop"]
