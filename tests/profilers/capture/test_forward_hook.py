"""A profiler from one forward pass to another: exact at both ends, whatever the model does."""

from __future__ import annotations

import copy
import gc
import io
import json
import threading
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from my_utils.ForwardProfileHook import ForwardProfilerHook  # noqa: E402
from my_utils.profiling.backends import (  # noqa: E402
    CaptureBackend,
    CudaProfilerBackend,
    TorchProfilerBackend,
)

from ...conftest import RunPython  # noqa: E402

pytestmark = pytest.mark.c_code


class Recorder(CaptureBackend):
    def __init__(self) -> None:
        self.calls: list[str] = []

    def start(self) -> None:
        self.calls.append("start")

    def stop(self) -> None:
        self.calls.append("stop")


class Model(torch.nn.Module):  # type: ignore[misc, name-defined]
    """Notes its passes; `do` is run in each."""

    def __init__(self, log: list[str], do: Callable[[int], object] = lambda number: None) -> None:
        super().__init__()
        self.log = log
        self.do = do
        self.number = 0

    def forward(self, x: Any) -> Any:
        number, self.number = self.number, self.number + 1
        self.log.append(str(number))
        self.do(number)
        return x


@pytest.fixture
def backend() -> Recorder:
    return Recorder()


def hook_of(backend: CaptureBackend, start: int = 1, stop: int = 3, **rest: Any) -> Any:
    return ForwardProfilerHook(start, stop, backend=backend, **rest)


def run(model: Any, passes: int) -> None:
    for _ in range(passes):
        model(None)


def test_both_ends(backend: Recorder) -> None:
    model = Model(backend.calls)
    hook = hook_of(backend).attach(model)
    for step in range(5):
        assert model(step) == step
        backend.calls.append("backward")
    calls = "0 backward start 1 backward 2 backward stop 3 backward 4 backward"
    assert backend.calls == calls.split()
    assert (hook.outcome, hook.passes) == ("done", 5)


def test_forward_only(backend: Recorder) -> None:
    model = Model(backend.calls)
    hook_of(backend, forward_only=True).attach(model)
    for _ in range(4):
        model(None)
        backend.calls.append("backward")
    assert " ".join(backend.calls) == "0 backward start 1 backward 2 stop backward 3 backward"


def test_from_the_first_pass(backend: Recorder) -> None:
    hook_of(backend, 0, 1).attach(model := Model(backend.calls))
    run(model, 2)
    assert backend.calls == ["start", "0", "stop", "1"]


def test_a_pass_that_raises_closes(backend: Recorder, caplog: pytest.LogCaptureFixture) -> None:
    error = ValueError("broken")

    def do(number: int) -> None:
        if number in (0, 2):
            raise error

    hook = hook_of(backend, 1, 9).attach(model := Model(backend.calls, do))
    for number in range(4):
        if number in (0, 2):
            with pytest.raises(ValueError) as caught:
                model(None)
            assert caught.value is error
        else:
            model(None)
    assert backend.calls == ["0", "start", "1", "2", "stop", "3"]
    assert (hook.outcome, hook.passes) == ("raised", 4)
    assert "a pass raised" in caplog.text


def test_a_model_that_returns_none_has_not_raised(backend: Recorder) -> None:
    hook = hook_of(backend, 0, 9).attach(model := Model(backend.calls))
    try:
        raise KeyError
    except KeyError:  # an exception that is handled round the call is not the call's
        assert model(None) is None
    assert hook.outcome == "open"
    hook.stop()


def test_a_hook_of_somebody_else_that_raises(backend: Recorder) -> None:
    model = Model(backend.calls)
    refuse = [True]

    def before(module: object, args: object) -> None:
        if refuse[0]:
            raise ValueError

    model.register_forward_pre_hook(before)
    hook = hook_of(backend, 1, 2).attach(model)
    with pytest.raises(ValueError):  # its end is reported, and its beginning was not
        model(None)
    refuse[0] = False
    run(model, 3)
    assert backend.calls == ["0", "start", "1", "stop", "2"]
    assert hook.outcome == "done"


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
def test_a_pass_cut_short_by_ctrl_c(kind: type[BaseException], backend: Recorder) -> None:
    """torch tells no hook of it."""
    cut = {0, 3}

    def do(number: int) -> None:
        if number in cut:
            raise kind

    hook = hook_of(backend, 2, 9).attach(model := Model(backend.calls, do))
    kept = []
    for number in range(6):
        try:
            model(None)
        except kind as error:
            kept.append(error)  # with its traceback, as a notebook keeps it
        assert hook.passes == number + 1
    assert backend.calls == ["0", "1", "start", "2", "3", "stop", "4", "5"]
    assert hook.outcome == "raised"


def test_a_module_that_calls_itself(backend: Recorder) -> None:
    class Nested(Model):
        def forward(self, x: int) -> Any:
            if x > 0:
                self(x - 1)
                return self(x - 1)
            return super().forward(x)

    hook = hook_of(backend, 1, 2).attach(model := Nested(backend.calls))
    for _ in range(3):
        model(2)
    assert " ".join(backend.calls) == "0 1 2 3 start 4 5 6 7 stop 8 9 10 11"
    assert hook.passes == 3


def test_a_nested_call_that_raises_inside(backend: Recorder) -> None:
    class Careful(Model):
        def forward(self, x: int) -> Any:
            if x == 0:
                raise ValueError
            with pytest.raises(ValueError):
                self(0)
            return super().forward(x)

    hook = hook_of(backend, 1, 2).attach(model := Careful(backend.calls))
    for _ in range(3):
        model(1)
    assert backend.calls == ["0", "start", "1", "stop", "2"]
    assert hook.outcome == "done"


def test_threads_count_each_pass(backend: Recorder) -> None:
    inside = threading.Barrier(4)
    hook = hook_of(backend, 4, 8).attach(
        model := Model(backend.calls, lambda number: inside.wait(60))
    )
    threads = [threading.Thread(target=run, args=(model, 3)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert hook.passes == 12
    order = [call for call in backend.calls if call in ("start", "stop")]
    assert order == ["start", "stop"]
    assert backend.calls.index("start") == 4
    assert hook.outcome == "done"


def test_another_profiler_that_keeps_the_window_from_recording(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    backend = TorchProfilerBackend(tmp_path, rank=0)
    with torch.profiler.profile():
        hook = hook_of(backend).attach(model := Model([]))
        run(model, 5)
        assert (hook.outcome, hook.passes) == ("failed", 5)
    reason = "a torch.profiler.profile of the program was recording"
    assert f"{hook}: failed: {reason}" in caplog.text
    hook.stop()
    hook.attach(model)
    run(model, 5)
    assert hook.outcome == "done"
    assert backend.traces == [tmp_path / "forward_1-3__rank0.json"]


def test_a_stop_waits_for_a_start_in_another_thread() -> None:
    class Slow(Recorder):
        def start(self) -> None:
            self.calls.append("starting")
            time.sleep(0.3)
            super().start()

    backend = Slow()
    hook_of(backend, 0, 1).attach(model := Model([]))
    thread = threading.Thread(target=model, args=(None,))
    thread.start()
    while not backend.calls:
        time.sleep(0.01)
    model(None)
    thread.join()
    assert backend.calls == ["starting", "start", "stop"]


@pytest.mark.parametrize("stop", [1, 5])
@pytest.mark.parametrize("backend_is_slow", [False, True])
def test_a_pass_waits_for_the_window_of_another_thread(stop: int, backend_is_slow: bool) -> None:
    calls: list[str] = []
    begun, ended = threading.Event(), threading.Event()

    def linger() -> None:
        begun.set()
        ended.wait(1)  # for a pass that does not wait; one that does, does not end by then

    class Slow(Recorder):
        def start(self) -> None:
            if backend_is_slow:
                linger()
            super().start()

    class Late(ForwardProfilerHook):
        def _opens(self) -> None:
            if not backend_is_slow:
                linger()
            super()._opens()

    backend = Slow()
    backend.calls = calls
    hook = Late(0, stop, backend=backend).attach(model := Model(calls))
    thread = threading.Thread(target=model, args=(None,))
    thread.start()
    assert begun.wait(60)
    model(None)
    ended.set()
    thread.join()
    assert calls[0] == "start" and calls.count("stop") == (stop == 1)
    assert hook.outcome == ("done" if stop == 1 else "open")
    hook.stop()


def test_a_pass_that_raises_closes_the_window_that_opens_meanwhile() -> None:
    begun, ended = threading.Event(), threading.Event()

    class Late(ForwardProfilerHook):
        def _opens(self) -> None:
            begun.set()
            ended.wait(1)
            super()._opens()

    def do(number: int) -> None:
        if threading.current_thread() is thread:
            assert begun.wait(60)
            raise ValueError

    backend = Recorder()
    hook = Late(1, 9, backend=backend).attach(model := Model([], do))

    def raising() -> None:
        with pytest.raises(ValueError):
            model(None)
        ended.set()

    thread = threading.Thread(target=raising)
    thread.start()
    while hook.passes < 1:
        time.sleep(0.01)
    model(None)
    thread.join()
    assert (backend.calls, hook.outcome) == (["start", "stop"], "raised")


def test_copies_are_not_counted(backend: Recorder, caplog: pytest.LogCaptureFixture) -> None:
    model = Model(backend.calls)
    hook = hook_of(backend, 0, 5).attach(model)
    run(copy.deepcopy(model), 2)
    assert hook.passes == 0
    for _ in range(2):
        model._replicate_for_data_parallel()(None)
    assert hook.passes == 0
    assert caplog.text.count("attach the hook to the DataParallel object") == 1
    run(model, 1)
    assert hook.passes == 1
    hook.stop()


def test_a_model_with_hooks_is_saved(backend: Recorder) -> None:
    model = torch.nn.Linear(2, 2)
    hook = hook_of(backend, 0, 1).attach(model)
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    loaded = torch.load(file, weights_only=False)
    run_twice = [loaded(torch.ones(1, 2)) for _ in range(2)]
    assert torch.equal(run_twice[0], model(torch.ones(1, 2)))
    assert hook.passes == 1
    assert backend.calls == ["start"]
    hook.stop()


def test_detach_closes(backend: Recorder) -> None:
    hook = hook_of(backend, 0, 9)
    hook.stop()
    model = Model(backend.calls)
    hook.attach(model)
    with pytest.raises(RuntimeError, match="stop it first"):
        hook.attach(model)
    run(model, 1)
    hook.stop()
    hook.stop()
    assert hook.outcome == "detached" and not hook.attached
    assert not model._forward_pre_hooks and not model._forward_hooks
    run(model, 1)
    assert backend.calls == ["start", "0", "stop", "1"]
    hook.attach(model)  # anew, from 0
    run(model, 10)
    assert backend.calls[4:6] == ["start", "2"]
    assert backend.calls.count("stop") == 2


def test_detach_within_a_pass(backend: Recorder) -> None:
    hook = hook_of(backend, 0, 9)
    model = Model(backend.calls, lambda number: hook.stop())
    hook.attach(model)
    run(model, 2)
    assert backend.calls == ["start", "0", "stop", "1"]


def test_a_model_that_is_gone(backend: Recorder) -> None:
    model = Model(backend.calls)
    gone = weakref.ref(model)
    hook = hook_of(backend, 0, 9).attach(model)
    run(model, 1)
    del model
    gc.collect()
    assert gone() is None
    assert backend.calls == ["start", "0", "stop"]
    assert not hook.attached


def test_ranks(backend: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "2")
    monkeypatch.setenv("WORLD_SIZE", "4")
    for chosen, count in (([0, 1], 0), ([2], 1), (2, 1), (3, 0), (None, 1)):
        for name in ("rank_only", "ranks"):
            model = Model([])
            hook = hook_of(backend, 0, 1, **{name: chosen}).attach(model)
            assert len(model._forward_hooks) == count
            hook.stop()


def test_a_backend_that_fails(caplog: pytest.LogCaptureFixture) -> None:
    class Broken(Recorder):
        def start(self) -> None:
            super().start()
            raise OSError("no space")

    class BrokenStop(Recorder):
        def stop(self) -> None:
            super().stop()
            raise OSError("no space")

    for backend, outcome in ((Broken(), "failed"), (BrokenStop(), "failed")):
        hook = hook_of(backend).attach(model := Model([]))
        run(model, 5)
        assert hook.outcome == outcome
    assert "could not be started" in caplog.text
    assert "could not be stopped" in caplog.text


def test_a_backend_that_runs_the_model(backend: Recorder) -> None:
    class Warm(Recorder):
        def start(self) -> None:
            super().start()
            model(None)

        def stop(self) -> None:
            model(None)
            super().stop()

    warm = Warm()
    model = Model(warm.calls)
    hook_of(warm, 1, 2).attach(model)
    run(model, 3)
    assert warm.calls == ["0", "start", "1", "2", "3", "stop", "4"]


def test_an_nvtx_range(backend: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    def begin(name: str) -> Callable[[], None]:
        backend.calls.append(f"begin {name}")
        return lambda: backend.calls.append("end")

    monkeypatch.setattr("my_utils.profilers.capture.forward_profile_hook.begin_range", begin)
    hook_of(backend, 0, 1, nvtx_range="window").attach(model := Model(backend.calls))
    run(model, 2)
    assert backend.calls == ["start", "begin window", "0", "end", "stop", "1"]


def test_without_cuda(caplog: pytest.LogCaptureFixture) -> None:
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    hook = ForwardProfilerHook(start_iter=1, stop_iter=2, rank_only=[0], nvtx_range="window")
    assert isinstance(hook.backend, CudaProfilerBackend)
    run(Model([]), 1)
    hook.attach(model := Model([]))
    run(model, 3)
    assert hook.outcome == "done"
    assert "CUDA is not available" in caplog.text


def test_a_trace_holds_those_passes(tmp_path: Path) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU())
    backend = TorchProfilerBackend(tmp_path, rank=0)
    hook_of(backend, 2, 4).attach(model)
    for step in range(6):
        loss = model(torch.ones(1, 2)).sum()
        with torch.profiler.record_function(f"mark{step}"):
            loss.backward()
    (path,) = backend.traces
    assert path.name == "forward_2-4__rank0.json"
    events = json.loads(path.read_text(encoding="utf-8"))["traceEvents"]
    marks = {event["name"] for event in events if event["name"].startswith("mark")}
    assert marks == {"mark2", "mark3"}
    assert sum(event["name"] == "aten::linear" for event in events) == 2


@pytest.mark.parametrize("first", ["attach", "compile"])
def test_with_torch_compile(first: str, backend: Recorder) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU())
    hook = hook_of(backend, 1, 3)
    if first == "attach":
        hook.attach(model)
        compiled = torch.compile(model, backend="eager")
    else:
        compiled = torch.compile(model, backend="eager")
        hook.attach(compiled)
    calls = []
    for _ in range(5):
        compiled(torch.ones(1, 2))
        calls.append(len(backend.calls))
    assert calls == [0, 1, 1, 2, 2]
    assert (hook.passes, hook.outcome) == (5, "done")


EXIT = """
import os, sys
import torch
from my_utils.ForwardProfileHook import ForwardProfilerHook
from my_utils.profiling.backends import CaptureBackend

class Loud(CaptureBackend):
    def start(self): print("start", flush=True)
    def stop(self): print("stop", flush=True)

model = torch.nn.Linear(1, 1)
hook = ForwardProfilerHook(1, 9, backend=Loud()).attach(model)
model(torch.ones(1))
if sys.argv[1] == "before":
    if os.fork() == 0:
        model(torch.ones(1))
        sys.exit()
    os.wait()
model(torch.ones(1))
if sys.argv[1] == "fork":
    if os.fork() == 0:
        for _ in range(9):
            model(torch.ones(1))
        print(hook.outcome, hook.attached, flush=True)
        sys.exit()
    os.wait()
if sys.argv[1] == "raise":
    raise SystemExit(3)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "printed"),
    [("end", ["start", "stop"]), ("raise", ["start", "stop"]), ("before", ["start", "stop"]),
     ("fork", ["start", "None False", "stop"])],
)  # fmt: skip
def test_a_process_that_ends_or_forks(how: str, printed: list[str], run_python: RunPython) -> None:
    result = run_python("-c", EXIT, how)
    assert result.returncode == (3 if how == "raise" else 0), result.stderr
    assert result.stdout.splitlines() == printed


@pytest.mark.gpu
def test_on_a_gpu() -> None:
    model = torch.nn.Linear(4, 4).cuda()
    hook = ForwardProfilerHook(1, 2, nvtx_range="window").attach(model)
    for _ in range(3):
        model(torch.ones(1, 4, device="cuda")).sum().backward()
    assert hook.outcome == "done"
