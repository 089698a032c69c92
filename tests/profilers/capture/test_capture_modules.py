"""Forward passes of modules that open and close capture windows."""

from __future__ import annotations

import contextlib
import copy
import pickle
import threading
import time
from collections.abc import Callable

import pytest

pytest.importorskip("torch", reason="torch is not installed")
import torch

from my_utils.profiling.capture_controller import (
    CaptureController,
    attach,
    set_default_controller,
    set_position,
)

from .test_capture_controller import Recorder, backend, controller, window

__all__ = ["backend", "controller"]  # fixtures


def wait_until(condition: Callable[[], object]) -> None:
    end = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end, "waited for nothing"
        time.sleep(0.01)


def test_attach_to_a_module(controller: CaptureController, backend: Recorder) -> None:
    module = torch.nn.Linear(2, 2)
    detach = controller.attach(module, "f")
    controller.arm(window(start_iter=1))
    for _ in range(3):
        module(torch.zeros(1, 2))
    assert backend.calls == [("start", "w"), ("stop", "w")]
    controller.arm(window())
    with pytest.raises(RuntimeError):
        module(torch.zeros(1, 3))
    assert controller.outcomes["w"] == "raised"
    detach()
    controller.arm(window())
    module(torch.zeros(1, 2))
    assert controller.armed == ["w"]


def test_named_by_the_class(controller: CaptureController) -> None:
    module = torch.nn.ReLU()
    controller.attach(module)
    controller.arm(window(start_profile_names=["ReLU.forward"]))
    module(torch.zeros(1))
    assert controller.outcomes == {"w": "done"}
    with pytest.raises(TypeError, match=r"module must be a torch\.nn\.Module, not 3"):
        controller.attach(3)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="role must be str"):
        controller.attach(module, role=3)  # type: ignore[arg-type]


def test_one_that_returns_nothing(controller: CaptureController) -> None:
    class Silent(torch.nn.Module):
        def forward(self, fails: bool) -> None:
            if fails:
                raise ValueError("mine")

    module = Silent()
    controller.attach(module, "f")
    for fails in (False, True):
        controller.arm(window())
        try:
            raise KeyError("handled while the pass runs")
        except KeyError:
            with contextlib.suppress(ValueError):
                module(fails)
        assert controller.outcomes["w"] == ("raised" if fails else "done")


def test_a_module_that_calls_itself(controller: CaptureController) -> None:
    seen = []

    class Nested(torch.nn.Module):
        def forward(self, depth: int) -> int:
            seen.append(controller.window)
            return depth if depth == 0 else int(self(depth - 1))

    module = Nested()
    controller.attach(module, "f")
    controller.arm(window(start_iter=0))
    module(2)
    assert (seen, controller.outcomes) == (["w"] * 3, {"w": "done"})


def test_threads_keep_their_passes_apart(
    controller: CaptureController,
) -> None:
    meet = threading.Barrier(2)

    class Slow(torch.nn.Module):
        def forward(self, name: str) -> None:
            meet.wait(30)  # both are inside
            if name == "first":
                meet.wait(30)
            else:
                assert controller.window == "w"

    module = Slow()
    mine = threading.local()
    controller.attach(module, "f", meta=lambda: {"iter": mine.iter})

    def call(number: int, name: str) -> None:
        mine.iter = number
        module(name)

    controller.arm(window(start_iter=1))
    first = threading.Thread(target=call, args=(1, "first"))
    first.start()
    wait_until(lambda: controller.window == "w")
    call(1, "second")  # ends inside the first
    assert controller.window == "w"
    meet.wait(30)
    first.join(30)
    assert controller.outcomes == {"w": "done"}


def test_an_interrupted_pass_ends_with_the_next(
    controller: CaptureController,
) -> None:
    class Stopped(torch.nn.Module):
        def forward(self, stops: bool) -> bool:
            if stops:
                raise KeyboardInterrupt
            return stops

    module = Stopped()
    controller.attach(module, "f")
    controller.arm(window())
    with pytest.raises(KeyboardInterrupt):
        module(True)
    assert controller.window == "w"
    module(False)
    assert controller.outcomes == {"w": "raised"}


def test_copies_report_nothing(controller: CaptureController) -> None:
    module = torch.nn.Linear(2, 2)
    controller.attach(module, "f")
    copies = [copy.deepcopy(module), pickle.loads(pickle.dumps(module))]
    controller.arm(window())
    for one in copies:
        one(torch.zeros(1, 2))
    assert controller.armed == ["w"]
    module(torch.zeros(1, 2))
    assert controller.armed == []


def test_to_the_process_s_controller(controller: CaptureController) -> None:
    module = torch.nn.Linear(2, 2)
    detach = attach(module, "f", role="actor", rank=1)
    module(torch.zeros(1, 2))  # counted, and reported to nobody
    before = set_default_controller(controller)
    try:
        controller.arm(window(start_iter=2, roles=["actor"], ranks=[1]))
        opened = []
        module.register_forward_hook(lambda *_: opened.append(controller.window))
        for _ in range(3):
            module(torch.zeros(1, 2))
        assert controller.outcomes == {"w": "done"}
        set_position(7)
        controller.arm(window(start_iter=7))
        module(torch.zeros(1, 2))
        assert controller.outcomes == {"w": "done"}
        detach()
        controller.arm(window(window_id="x"))
        module(torch.zeros(1, 2))
        assert controller.armed == ["x"]
    finally:
        set_position(None)
        set_default_controller(before)
