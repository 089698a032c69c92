"""Whatever begins and ends does so with `with`, too, and lets an exception of the block through.

Old names of what begins and ends go on to work."""

from __future__ import annotations

import copy
import pickle
import resource
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import my_utils
from my_utils.capture import request_capture
from my_utils.capture.modules import attach
from my_utils.common import aliases
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


def test_other_names_warn_once(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aliases, "_warned", set())
    hook = my_utils.ForwardProfilerHook(0, 1, backend=Noted())
    hook.start(model)
    with pytest.warns(DeprecationWarning, match=r"detach\(\) is called stop\(\) now") as found:
        hook.detach()
        hook.detach()
    assert len(found) == 1
    assert found[0].filename == __file__
    assert hooks_of(model) == 0


def test_a_parameter_by_its_name_from_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aliases, "_warned", set())
    gather: Any = my_utils.TimeManager().gather
    barrier: Any = my_utils.etcd_barrier
    with pytest.warns(DeprecationWarning) as found:
        assert gather(timeout=5.0) == gather(timeout=5.0) == {}
        for _ in range(2):
            with pytest.raises(ValueError, match="timeout_s must be at least 0, not -1"):
                barrier("b", 1, timeout=-1, interval_s=0.1)
    assert [str(each.message) for each in found] == [
        "TimeManager.gather(timeout=…) is called timeout_s=… now",
        "etcd_barrier(timeout=…) is called timeout_s=… now",
    ]
    assert {each.filename for each in found} == {__file__}
    with pytest.raises(TypeError, match=r"got timeout_s and timeout, which are the same"):
        gather(timeout=5.0, timeout_s=5.0)


def test_the_tracker_has_its_interval_by_two_names() -> None:
    tracker = my_utils.GPU_Performance_Tracker
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for made in (tracker("run", 0.5), tracker(interval=0.5), tracker(interval_s=0.5)):
            assert made.interval == made.interval_s == 0.5
    with pytest.raises(ValueError, match="interval_s must be"):
        tracker(interval_s=0)


PLACES: dict[str, tuple[Callable[..., Any], str]] = {
    "MemorySnapshotter": (my_utils.MemorySnapshotter, "output_dir"),
    "ProfilerWrapper": (my_utils.ProfilerWrapper, "output_dir"),
    "FlexibleProfiler": (partial(my_utils.FlexibleProfiler, "DIT"), "output_dir"),
    "TorchProfilerBackend": (backends.TorchProfilerBackend, "output_dir"),
    "MemorySnapshotBackend": (backends.MemorySnapshotBackend, "output_dir"),
    "CMakeListsGenerator": (partial(my_utils.CMakeListsGenerator, ["a.mu"]), "output_dir"),
}


@pytest.mark.parametrize("make, old", PLACES.values(), ids=PLACES)
def test_a_place_by_its_name_from_before(
    make: Callable[..., Any], old: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(aliases, "_warned", set())
    with pytest.warns(DeprecationWarning, match=rf"{old}=…\) is called output=… now"):
        made = make(**{old: tmp_path})
    assert made.output == tmp_path
    with pytest.warns(DeprecationWarning, match=rf"\.{old} is called output now"):
        assert getattr(made, old) == tmp_path
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        setattr(made, old, tmp_path / "other")  # it has warned
        assert made.output == tmp_path / "other"
        assert make(output=tmp_path).output == tmp_path


@pytest.mark.parametrize("name", sorted(PLACES.keys() - {"MemorySnapshotter"}))
def test_what_was_pickled_by_the_name_from_before(name: str, tmp_path: Path) -> None:
    made = PLACES[name][0](output=tmp_path)
    vars(made)["output_dir"] = vars(made).pop("output")  # as the first release had it
    for loaded in (pickle.loads(pickle.dumps(made)), copy.copy(made)):
        assert loaded.output == tmp_path
        assert "output_dir" not in vars(loaded)


def test_the_folder_of_prometheus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("prometheus_client", reason="prometheus_client is not installed")
    monkeypatch.setattr(aliases, "_warned", set())
    exporter: Any = my_utils.PrometheusExporter
    with pytest.warns(DeprecationWarning, match=r"folder=…\) is called output=… now"):
        made = exporter(my_utils.TimeManager(), folder=tmp_path)
    with made:
        assert made.path.parent == tmp_path


def test_the_field_of_a_window_does_not_warn(tmp_path: Path) -> None:
    window: dict[str, Any] = {"tool": "torch", "output_dir": tmp_path}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        made: Any = backends.make_backend(**window)
    assert made.output == tmp_path


def test_a_request_by_the_name_from_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aliases, "_warned", set())
    ask: Any = request_capture
    with pytest.warns(DeprecationWarning, match=r"output_dir=…\) is called output=… now"):
        request = ask(tmp_path, output_dir=tmp_path / "there")
    assert request.output_dir == str(tmp_path / "there")
    assert ask(tmp_path, output=tmp_path / "there").output_dir == request.output_dir
