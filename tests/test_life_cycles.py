"""Whatever begins and ends does so with `with`, too, and lets an exception of the block through.

Old names of what begins and ends go on to work."""

from __future__ import annotations

import resource
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import my_utils
from my_utils.profilers.capture.hooks import attach
from my_utils.profiling import backends
from my_utils.profiling.backends import CaptureBackend, MultiBackend

torch = pytest.importorskip("torch", reason="torch is not installed")


class Noted(CaptureBackend):
    def __init__(self) -> None:
        self.calls: list[str] = []

    def start(self) -> None:
        self.calls.append("start")

    def stop(self) -> None:
        self.calls.append("stop")


class Stuck(Noted):
    def stop(self) -> None:
        super().stop()
        raise RuntimeError("the driver refuses")


@pytest.fixture
def model() -> Any:
    return torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU())


def hooks_of(model: Any) -> int:
    return sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules())


def run(model: Any) -> None:
    model(torch.ones(1, 2))


def window(model: Any, backend: Noted) -> Any:
    return my_utils.ForwardProfilerHook(0, 9, backend=backend).start(model)


def armed(model: Any, backend: Noted) -> Any:
    controller = my_utils.CaptureController(backend)
    controller.arm({"window_id": "w", "start_profile_names": ["a"], "stop_profile_names": ["b"],
                    "stop_policy": "ON_STOP_PROFILE_NAME"})  # fmt: skip
    controller.on_enter(my_utils.HookEvent("a"))
    return controller


STARTED: dict[str, Callable[[Any, Noted], Any]] = {
    "backend": lambda model, backend: backend,
    "several backends": lambda model, backend: MultiBackend([backend]),
    "hook of forward passes": window,
    "controller": armed,
}


@pytest.mark.parametrize("make", STARTED.values(), ids=STARTED)
def test_a_backend_is_stopped_at_the_end_of_the_block(
    model: Any, make: Callable[[Any, Noted], Any]
) -> None:
    backend = Noted()
    with make(model, backend):
        run(model)
        assert backend.calls == ["start"]
    assert backend.calls == ["start", "stop"]
    assert hooks_of(model) == 0


@pytest.mark.parametrize("make", STARTED.values(), ids=STARTED)
def test_a_backend_that_cannot_stop_does_not_hide_the_exception(
    model: Any, make: Callable[[Any, Noted], Any]
) -> None:
    backend = Stuck()
    with pytest.raises(ZeroDivisionError), make(model, backend):
        run(model)
        raise ZeroDivisionError
    assert backend.calls == ["start", "stop"]


HOOKED: dict[str, Callable[[Any], Any]] = {
    "attach": attach,
    "controller.attach": lambda model: my_utils.CaptureController(Noted()).attach(model),
    "module profiler": my_utils.ModuleProfiler,
    "recorder": lambda model: my_utils.ForwardTraceRecorder(model),
    "module tracker": lambda model: my_utils.open_module_tracker(model),
    "forward hook": lambda model: my_utils.ForwardProfilerHook(0, 1, backend=Noted()).start(model),
}  # fmt: skip


@pytest.mark.parametrize("make", HOOKED.values(), ids=HOOKED)
@pytest.mark.parametrize("raises", [False, True], ids=["", "raises"])
def test_hooks_are_off_after_the_block(
    model: Any, make: Callable[[Any], Any], raises: bool
) -> None:
    if not raises:
        with make(model):
            run(model)
            assert hooks_of(model) > 0
    else:
        with pytest.raises(ZeroDivisionError), make(model):
            run(model)
            raise ZeroDivisionError
    assert hooks_of(model) == 0


@pytest.mark.parametrize("kind", [my_utils.MemorySnapshotter, my_utils.NoOpMemorySnapshotter])
def test_spans_are_closed_after_the_block(kind: Any, tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), kind(tmp_path) as snapshotter:
        snapshotter.start("a")
        snapshotter.start("b")
        raise ZeroDivisionError
    assert snapshotter.open_names == ()


def test_the_tracker_is_stopped(tmp_path: Path) -> None:
    tracker = my_utils.GPU_Performance_Tracker(tmp_path / "run", 0.05, False, plot=False)
    with pytest.raises(ZeroDivisionError), tracker:
        assert tracker.is_monitoring
        raise ZeroDivisionError
    assert not tracker.is_monitoring
    assert tracker.samples >= 1


def test_the_logger_is_closed(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), my_utils.GlobalLogger() as logger:
        logger.setup(tmp_path, rank=0, world_size=1, console=False)
        logger.instant("here")
        raise ZeroDivisionError
    assert not logger.is_set_up
    assert "here" in (tmp_path / "profile_rank_0.csv").read_text(encoding="utf-8")


def test_a_late_error_of_the_dumper_does_not_hide_the_exception(tmp_path: Path) -> None:
    cfg = my_utils.DumpConfig(root_dir=tmp_path, asynchronous=True, strict=True)
    dumper = my_utils.UniversalDumper(cfg)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
    try:
        with pytest.raises(ZeroDivisionError), dumper:
            dumper.dump("s", torch.zeros(10_000))
            raise ZeroDivisionError
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert dumper.failed == 1


# --- names from before ---


def test_promised_names_do_not_warn(model: Any, tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        recorder = my_utils.ForwardTraceRecorder(model)
        recorder.install()
        run(model)
        recorder.remove()
        tracker = my_utils.GPU_Performance_Tracker(tmp_path / "run", 0.05, False, plot=False)
        tracker.start_monitoring()
        assert tracker.stop_monitoring()
        hook = my_utils.ForwardProfilerHook(0, 1, backend=Noted())
        hook.attach(model)
        assert hook.attached
        hook.stop()
        assert my_utils.ProfilerWrapper(output=tmp_path).leave() == []
    assert len(recorder.events) == 3
    assert hooks_of(model) == 0


def test_the_tracker_has_its_interval_by_two_names() -> None:
    tracker = my_utils.GPU_Performance_Tracker
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for made in (tracker("run", 0.5), tracker(interval=0.5), tracker(interval_s=0.5)):
            assert made.interval == made.interval_s == 0.5
    with pytest.raises(ValueError, match="interval_s must be"):
        tracker(interval_s=0)


def test_the_field_of_a_window_is_taken(tmp_path: Path) -> None:
    window: dict[str, Any] = {"tool": "torch", "output_dir": tmp_path}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        made: Any = backends.make_backend(**window)
    assert made.output == tmp_path
