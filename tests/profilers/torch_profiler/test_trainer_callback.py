"""ProfCallback in transformers' Trainer: which steps it records, and what it leaves behind."""

from __future__ import annotations

import base64
import contextlib
import io
import json
import logging
import multiprocessing
import os
import pickle
import re
import shutil
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch", reason="torch is not installed")
import torch

from my_utils.csv2trace import csv_to_trace
from my_utils.logger import GlobalLogger
from my_utils.main import ProfCallback
from my_utils.memory_snapshot import MemorySnapshotter
from my_utils.profilers.torch_profiler import slot as _slot
from my_utils.profilers.torch_profiler.step_windows import NvtxWindow, TorchWindow
from my_utils.profilers.torch_profiler.torch_profile import Steps
from my_utils.profilers.torch_profiler.window_files import WindowFiles
from my_utils.utils import MyTimer

from ...clients.perfetto import TraceProcessor, why_missing
from ...conftest import RunPython
from ...fakes import cuda_allocator
from ...support.live_ranks import wait_until

no_cuda = pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")

transformers = pytest.importorskip("transformers", reason="transformers is not installed")
pytest.importorskip("accelerate", reason="accelerate is not installed")

# the first training of a process imports much
pytestmark = [pytest.mark.long_file, pytest.mark.timeout(320)]

# A window of the steps 3 and 4 with little in its files.
SHORT: dict[str, Any] = {
    "wait_steps": 1,
    "warmup_steps": 1,
    "active_steps": 2,
    "profile_memory": False,
    "with_stack": False,
    "record_shapes": False,
    "export_key_averages": False,
}
TRACE = "rank0.pt.trace.json"

DATA = [{"input_ids": torch.arange(8) + i, "labels": torch.arange(8) + i} for i in range(40)]


class Stop(Exception):
    """What the training raises in these tests."""


class AtStep(transformers.TrainerCallback):  # type: ignore[misc, name-defined, unused-ignore]
    """Does something when the step of that number begins."""

    def __init__(self, step: int, act: Any) -> None:
        self.step, self.act = step, act

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step + 1 == self.step:
            self.act(control)


def model() -> Any:
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        n_layer=2, n_head=2, n_embd=16, vocab_size=64, n_positions=8,
        bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    return transformers.GPT2LMHeadModel(config)


def trainer(folder: Path, *callbacks: Any, steps: int = 6, **arguments: Any) -> Any:
    settings: dict[str, Any] = {
        "output_dir": folder / "trainer",
        "use_cpu": True,
        "report_to": [],
        "save_strategy": "no",
        "disable_tqdm": True,
        "max_steps": steps,
        "per_device_train_batch_size": 2,
        **arguments,
    }
    return transformers.Trainer(
        model(), transformers.TrainingArguments(**settings), train_dataset=DATA,
        eval_dataset=DATA[:4], callbacks=list(callbacks),
    )  # fmt: skip


def events(folder: Path, name: str = TRACE) -> list[dict[str, Any]]:
    content = json.loads((folder / name).read_text(encoding="utf-8"))
    found: list[dict[str, Any]] = content["traceEvents"]
    return found


def steps_in(folder: Path) -> list[int]:
    """The marks of steps in a trace; each stands there once."""
    names = [event["name"] for event in events(folder) if event.get("cat") == "user_annotation"]
    return sorted(int(name.partition("#")[2]) for name in names if name.startswith("Profiler"))


def count(folder: Path, name: str) -> int:
    return sum(event["name"] == name for event in events(folder))


def written(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """The model is tiny, and threads that wait for each other on a busy machine take long."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(autouse=True)
def nothing_stays_open() -> Iterator[None]:
    yield
    assert _slot.holder() is None


# --- the files ---


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Ten steps with the defaults, under a timer."""
    folder = tmp_path_factory.mktemp("full")
    GlobalLogger().setup(folder / "before", rank=0, world_size=1, console=False)
    GlobalLogger().close()  # what timers of earlier tests recorded is not of this run
    GlobalLogger().setup(folder / "logs", rank=0, world_size=1, console=False)
    timer = MyTimer()
    callback = ProfCallback(folder / "out")
    timer.set_step(0)
    with timer.time_stage("training"):
        trainer(folder, callback, steps=10).train()
    timer.step()
    GlobalLogger().close()
    assert callback.folders == [folder / "out" / "iteration_9"]
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def window(full: Path) -> Path:
    return full / "out" / "iteration_9"


@pytest.mark.slow
def test_the_files_of_the_defaults(full: Path, window: Path) -> None:
    assert written(full / "out") == ["iteration_9"]
    assert written(window) == [
        "key_averages.txt",
        TRACE,
        "rank0_memory-timeline.html",
        "rank0_memory_snapshot.pickle",
        "rank0_stacks.txt",
    ]


def test_the_ninth_step_is_in_the_trace_whole_and_alone(window: Path) -> None:
    assert steps_in(window) == [8]
    (mark,) = (event for event in events(window) if event["name"] == "ProfilerStep#8"
               and event["cat"] == "user_annotation")  # fmt: skip
    end = mark["ts"] + mark["dur"]
    names = Counter(event["name"] for event in events(window))
    assert names["aten::embedding"] == 2  # tokens and positions, of one forward pass
    assert any(name.startswith("Optimizer.step#AdamW") for name in names)
    assert "torch/utils/data/dataloader.py" in " ".join(names)
    for event in events(window):
        if event["name"] == "aten::addmm":
            assert mark["ts"] <= event["ts"] and event["ts"] + event["dur"] <= end
            assert "Input Dims" in event["args"]


def test_tensorboards_plugin_reads_it(window: Path, tmp_path: Path) -> None:
    pytest.importorskip("torch_tb_profiler", reason="torch-tb-profiler is not installed")
    if multiprocessing.get_start_method() != "fork":
        pytest.skip("the plugin's reader starts processes by fork")
    from torch_tb_profiler import consts
    from torch_tb_profiler.profiler.data import RunProfileData
    from torch_tb_profiler.profiler.run_generator import RunGenerator

    found = consts.WORKER_PATTERN.match(TRACE)
    assert found is not None
    assert found.group(1) == "rank0"
    data = RunProfileData.parse("rank0", None, str(window / TRACE), str(tmp_path))
    profile = RunGenerator("rank0", None, data).generate_run_profile()
    assert [step[0] for step in profile.overview["steps"]["rows"]] == ["8"]
    operators = {row["name"] for row in profile.operation_table_by_name["data"]}
    assert {"aten::addmm", "aten::embedding"} <= operators


def test_perfetto_reads_it(window: Path) -> None:
    if why_missing() is not None:
        pytest.skip(str(why_missing()))
    with TraceProcessor(window / TRACE) as engine:
        (passes,) = engine.query("select count(*) as n from slice where name = 'aten::addmm'")
        assert passes["n"] == count(window, "aten::addmm")


def test_it_joins_the_trace_of_a_timer(full: Path, window: Path, tmp_path: Path) -> None:
    out = tmp_path / "joined.json"
    summary = csv_to_trace(full / "logs", out, merge=[window / TRACE])
    assert summary.messages() == []
    slices = [e for e in json.loads(out.read_text())["traceEvents"] if e["ph"] == "X"]
    (training,) = (event for event in slices if event["name"] == "training")
    inside = [event for event in slices if event["name"] == "aten::addmm"]
    assert len(inside) == count(window, "aten::addmm")
    for event in inside:
        assert training["ts"] < event["ts"] < training["ts"] + training["dur"]


def test_the_table(window: Path) -> None:
    text = (window / "key_averages.txt").read_text(encoding="utf-8")
    _, _, text = text.partition("\n\n")
    assert text.startswith("By name, shapes, stack\n")
    header = text.splitlines()[2]
    for column in ("Name", "Self CPU", "CPU Mem", "# of Calls", "Input Shapes", "Source Location"):
        assert column in header
    names = {line.split("  ")[0] for line in map(str.strip, text.splitlines())}
    assert {"aten::addmm", "AddmmBackward0", "aten::embedding"} <= names
    assert re.search(r"aten::addmm .* \[\[48\], \[16, 16\], \[16, 48\], \[\], \[\]\]", text)
    assert "modeling_gpt2.py" in text
    assert "<built-in function isinstance>" not in names  # Python is in the stacks


def test_the_short_table_on_top(window: Path) -> None:
    text = (window / "key_averages.txt").read_text(encoding="utf-8")
    lines = text.partition("\n\n")[0].splitlines()
    assert lines[0] == "Operators by time"
    assert max(map(len, lines)) <= 100
    names = [line.split()[0] for line in lines[4:-1]]
    assert len(names) == len(set(names))
    assert {"aten::addmm", "aten::embedding"} <= set(names)
    assert all("::" in name for name in names)
    calls = {line.split()[0]: int(line.split()[-1]) for line in lines[4:-1]}
    assert calls["aten::addmm"] == count(window, "aten::addmm")


def test_the_stacks(window: Path) -> None:
    lines = (window / "rank0_stacks.txt").read_text(encoding="utf-8").splitlines()
    assert len(lines) > 100
    assert all(re.fullmatch(r"\S+ [1-9]\d*", line) for line in lines)
    assert any("modeling_gpt2.py" in line and "test_trainer_callback.py" in line for line in lines)


def test_the_memory_timeline(window: Path) -> None:
    image = pytest.importorskip("matplotlib.image", reason="matplotlib is not installed")
    html = (window / "rank0_memory-timeline.html").read_text(encoding="utf-8")
    (encoded,) = re.findall(r"data:image/png;base64,([^']+)'", html)
    pixels = image.imread(io.BytesIO(base64.b64decode(encoded)))
    assert min(pixels.shape[:2]) > 500
    assert pixels[..., :3].std() > 0.05
    pyplot = pytest.importorskip("matplotlib.pyplot")
    assert pyplot.get_fignums() == []


def test_the_memory_snapshot(window: Path) -> None:
    from torch.cuda import _memory_viz as viewer

    snapshot = pickle.loads((window / "rank0_memory_snapshot.pickle").read_bytes())
    frames = {frame["name"] for event in snapshot["device_traces"][-1] for frame in event["frames"]}
    assert {"aten::addmm", "AddmmBackward0", "run_epoch"} & frames >= {"aten::addmm"}
    assert "training_step" in frames
    assert viewer.trace_plot(snapshot)
    assert viewer.segment_plot(snapshot)
    assert "modeling_gpt2.py" in viewer.memory(snapshot, format_flamegraph=str)


# --- which steps ---


@pytest.mark.parametrize(
    ("wait", "warmup", "active", "cycles", "expected"),
    [
        (1, 1, 2, 1, {4: [2, 3]}),
        (1, 1, 1, 2, {3: [2], 6: [5]}),
        pytest.param(0, 0, 2, 2, {2: [0, 1], 4: [2, 3]}, marks=pytest.mark.thorough),
        pytest.param(0, 1, 1, 0, {2: [1], 4: [3], 6: [5]}, marks=pytest.mark.thorough),
        (6, 0, 1, 1, {7: [6]}),
    ],
)
def test_schedules(
    tmp_path: Path, wait: int, warmup: int, active: int, cycles: int, expected: dict[int, list[int]]
) -> None:
    options = {**SHORT, "wait_steps": wait, "warmup_steps": warmup, "active_steps": active}
    callback = ProfCallback(tmp_path / "out", num_cycles=cycles, **options)
    trainer(tmp_path, callback, steps=7).train()
    found = {int(path.name.partition("_")[2]): steps_in(path) for path in callback.folders}
    assert found == expected
    assert all(written(path) == [TRACE] for path in callback.folders)


def test_steps_are_the_optimizers(tmp_path: Path) -> None:
    callback = ProfCallback(tmp_path / "out", **SHORT)
    trainer(tmp_path, callback, gradient_accumulation_steps=3, steps=5).train()
    (folder,) = callback.folders
    assert steps_in(folder) == [2, 3]
    assert count(folder, "aten::embedding") == 2 * 3 * 2
    assert sum(e["name"].startswith("Optimizer.step#") for e in events(folder)) == 2


@pytest.mark.thorough
@pytest.mark.parametrize("strategy", ["steps", "epoch"])
def test_evaluation_and_saving_before_the_window_are_not_in_it(
    tmp_path: Path, strategy: str
) -> None:
    callback = ProfCallback(tmp_path / "out", **{**SHORT, "active_steps": 1})
    run = trainer(
        tmp_path, callback, eval_strategy=strategy, save_strategy=strategy, eval_steps=1,
        save_steps=1, per_device_train_batch_size=20, steps=4,
    )  # fmt: skip
    run.train()
    (folder,) = callback.folders
    assert steps_in(folder) == [2]
    assert count(folder, "aten::embedding") == 2


def test_evaluation_between_recorded_steps_is_seen(tmp_path: Path) -> None:
    callback = ProfCallback(tmp_path / "out", **SHORT)
    run = trainer(tmp_path, callback, eval_strategy="steps", eval_steps=3, dataloader_num_workers=1)
    run.train()
    run.evaluate()
    (folder,) = callback.folders
    assert steps_in(folder) == [2, 3]
    assert count(folder, "aten::embedding") == 2 * 2 + 2


@pytest.mark.slow
def test_a_resumed_training(tmp_path: Path) -> None:
    trainer(tmp_path, steps=4, save_strategy="steps", save_steps=4).train()
    callback = ProfCallback(tmp_path / "out", **{**SHORT, "warmup_steps": 0})
    run = trainer(tmp_path, callback, steps=9)
    run.train(resume_from_checkpoint=str(tmp_path / "trainer" / "checkpoint-4"))
    assert written(tmp_path / "out") == ["iteration_7"]
    assert steps_in(callback.folders[0]) == [5, 6]


@pytest.mark.thorough
def test_a_second_training_has_folders_of_its_own(tmp_path: Path) -> None:
    callback = ProfCallback(tmp_path / "out", **SHORT)
    run = trainer(tmp_path, callback)
    run.train()
    first = (tmp_path / "out" / "iteration_4" / TRACE).read_bytes()
    run.train()
    assert written(tmp_path / "out") == ["iteration_4", "iteration_4.2"]
    assert [path.name for path in callback.folders] == ["iteration_4", "iteration_4.2"]
    assert (tmp_path / "out" / "iteration_4" / TRACE).read_bytes() == first
    assert steps_in(callback.folders[1]) == [2, 3]


# --- trainings that end early ---


@pytest.mark.parametrize("ends", ["max_steps", "stopped"])
def test_a_training_that_is_too_short(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, ends: str
) -> None:
    stop = AtStep(5, lambda control: setattr(control, "should_training_stop", True))
    callback = ProfCallback(tmp_path / "out")
    if ends == "stopped":
        trainer(tmp_path, stop, callback, steps=20).train()
    else:
        trainer(tmp_path, callback, steps=5).train()
    assert written(tmp_path / "out") == []
    assert caplog.text.count("ProfCallback needs 9 steps (4 wait + 4 warm-up + 1 active), "
                             "this training has 5: no window is complete") == 1  # fmt: skip


def test_a_training_that_stops_within_the_window(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    stop = AtStep(3, lambda control: setattr(control, "should_training_stop", True))
    callback = ProfCallback(tmp_path / "out", **SHORT)
    trainer(tmp_path, callback, stop).train()
    (folder,) = callback.folders
    assert (folder.name, steps_in(folder)) == ("iteration_3", [2])
    assert "needs 4 steps" in caplog.text


def test_a_training_that_stops_before_the_first_recorded_step(tmp_path: Path) -> None:
    callback = ProfCallback(tmp_path / "out", **SHORT)
    trainer(tmp_path, callback, steps=2).train()
    assert written(tmp_path / "out") == []


@pytest.mark.thorough
def test_cycles_that_do_not_all_fit(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    callback = ProfCallback(tmp_path / "out", num_cycles=2, **SHORT)
    trainer(tmp_path, callback, steps=6).train()
    assert written(tmp_path / "out") == ["iteration_4"]
    assert "needs 8 steps (1 wait + 1 warm-up + 2 active, 2 times)" in caplog.text
    assert "has 6: 1 windows are complete" in caplog.text


def fails(error: BaseException) -> Any:
    def act(_: Any) -> None:
        raise error

    return act


def test_an_exception_goes_through_and_the_window_is_closed(tmp_path: Path) -> None:
    error = Stop("the loss is NaN")
    with pytest.raises(Stop) as caught, ProfCallback(tmp_path / "out", **SHORT) as callback:
        trainer(tmp_path, callback, AtStep(4, fails(error))).train()
    assert caught.value is error
    (folder,) = callback.folders
    assert (folder.name, steps_in(folder)) == ("iteration_4", [2, 3])
    callback.close()
    assert written(tmp_path / "out") == ["iteration_4"]


def test_an_exception_in_the_warm_up(tmp_path: Path) -> None:
    with pytest.raises(Stop), ProfCallback(tmp_path / "out", **SHORT) as callback:
        trainer(tmp_path, callback, AtStep(2, fails(Stop()))).train()
    assert written(tmp_path / "out") == []


def test_ctrl_c(tmp_path: Path) -> None:
    press = AtStep(4, lambda _: os.kill(os.getpid(), signal.SIGINT))
    callback = ProfCallback(tmp_path / "out", **SHORT)
    with pytest.raises(KeyboardInterrupt):
        trainer(tmp_path, callback, press).train()
    trainer(tmp_path, callback).train()
    assert written(tmp_path / "out") == ["iteration_4", "iteration_4.2"]
    assert [steps_in(folder) for folder in callback.folders] == [[2, 3], [2, 3]]


LONG: dict[str, Any] = {**SHORT, "active_steps": 1000}


def test_a_training_that_failed_is_not_profiled_on(tmp_path: Path) -> None:
    callback = ProfCallback(tmp_path / "out", **LONG)
    with pytest.raises(Stop):
        trainer(tmp_path, callback, AtStep(4, fails(Stop()))).train()
    wait_until(lambda: _slot.holder() is None)  # nobody calls the callback any more
    assert not torch.autograd._profiler_enabled()  # type: ignore[attr-defined, unused-ignore]
    assert [steps_in(folder) for folder in callback.folders] == [[2, 3]]


@pytest.mark.thorough
def test_the_next_training_is_profiled_by_another_callback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(_slot, "POLL_S", 3600.0)  # so that the next training finds the window open
    stale = ProfCallback(tmp_path / "stale", **LONG)
    with pytest.raises(Stop):
        trainer(tmp_path, stale, AtStep(4, fails(Stop()))).train()
    assert _slot.holder() is not None
    callback = ProfCallback(tmp_path / "out", **SHORT)
    trainer(tmp_path, callback).train()
    assert [steps_in(folder) for folder in callback.folders] == [[2, 3]]
    assert [steps_in(folder) for folder in stale.folders] == [[2, 3]]
    assert "is still profiling, but what it profiles has ended; it is closed now" in caplog.text


@pytest.mark.thorough
def test_a_training_within_a_training_leaves_the_outer_window(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    inner = ProfCallback(tmp_path / "inner", **SHORT)
    outer = ProfCallback(tmp_path / "outer", **SHORT)
    nested = AtStep(3, lambda _: trainer(tmp_path, inner).train())
    trainer(tmp_path, outer, nested).train()
    assert [steps_in(folder)[-1] for folder in outer.folders] == [3]
    assert inner.folders == []
    assert "runs unprofiled" in caplog.text


@pytest.mark.slow
def test_a_failed_training_of_another_thread(tmp_path: Path) -> None:
    def run() -> None:
        with contextlib.suppress(Stop):
            trainer(
                tmp_path, ProfCallback(tmp_path / "t", **LONG), AtStep(4, fails(Stop()))
            ).train()

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    callback = ProfCallback(tmp_path / "out", **SHORT)
    trainer(tmp_path, callback).train()
    assert [steps_in(folder) for folder in callback.folders] == [[2, 3]]


@pytest.mark.thorough
def test_waiting_threads_are_not_in_the_stacks(tmp_path: Path) -> None:
    callback = ProfCallback(
        tmp_path / "out", **{**SHORT, "with_stack": True, "export_key_averages": False}
    )
    trainer(tmp_path, callback, disable_tqdm=False).train()
    (folder,) = callback.folders
    names = {str(event.get("name")) for event in events(folder)}
    assert any("tqdm/_monitor.py" in name for name in names)  # the trace has all threads
    lines = (folder / "rank0_stacks.txt").read_text(encoding="utf-8").splitlines()
    assert any("modeling_gpt2.py" in line for line in lines)
    assert not any("tqdm/_monitor.py" in line or "slot.py" in line for line in lines)


@pytest.mark.slow
def test_a_smaller_batch_after_running_out_of_memory(tmp_path: Path) -> None:
    begun: list[int] = []

    def too_big(_: Any) -> None:
        begun.append(run._train_batch_size)
        if len(begun) == 1:
            raise RuntimeError("CUDA out of memory.")

    callback = ProfCallback(tmp_path / "out", **SHORT)
    run = trainer(tmp_path, callback, AtStep(3, too_big), auto_find_batch_size=True)
    run.train()
    assert len(begun) == 2 and begun[1] < begun[0]
    assert written(tmp_path / "out") == ["iteration_3", "iteration_4"]
    assert steps_in(tmp_path / "out" / "iteration_4") == [2, 3]


LEFT_OPEN = """
import sys, torch, tests.profilers.torch_profiler.test_trainer_callback as t
torch.set_num_threads(1)
from pathlib import Path
folder = Path(sys.argv[1])
t.trainer(folder, t.ProfCallback(folder / "out", **t.SHORT), t.AtStep(4, t.fails(t.Stop()))).train()
"""


@pytest.mark.slow
def test_a_window_left_open_is_written_at_exit(tmp_path: Path, run_python: RunPython) -> None:
    done = run_python("-c", LEFT_OPEN, str(tmp_path), timeout=200)
    assert done.returncode == 1, done.stderr
    assert "\ntests.profilers.torch_profiler.test_trainer_callback.Stop" in done.stderr
    assert "Error" not in done.stderr
    assert steps_in(tmp_path / "out" / "iteration_4") == [2, 3]


def test_a_child_that_is_forked_in_the_window(tmp_path: Path) -> None:
    statuses: list[int] = []

    def fork(_: Any) -> None:
        child = os.fork()
        if child == 0:
            callback.close()
            os._exit(int(written(tmp_path / "out") != []))
        statuses.append(os.waitpid(child, 0)[1])

    callback = ProfCallback(tmp_path / "out", **SHORT)
    trainer(tmp_path, callback, AtStep(4, fork)).train()
    assert statuses == [0]
    assert steps_in(callback.folders[0]) == [2, 3]


# --- trouble ---


def test_another_profiler_runs(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    callback = ProfCallback(tmp_path / "out", **SHORT)
    with torch.profiler.profile() as own:
        trainer(tmp_path, callback, steps=4).train()
    assert "runs unprofiled: a torch.profiler.profile of the program" in caplog.text
    assert (callback.folders, written(tmp_path / "out")) == ([], [])
    assert "aten::addmm" in {event.name for event in own.events()}


def test_a_folder_that_cannot_be_made(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "out").write_text("a file")
    callback = ProfCallback(tmp_path / "out", **SHORT)
    run = trainer(tmp_path, callback)
    run.train()
    assert run.state.global_step == 6
    assert callback.folders == []
    assert caplog.text.count("could not be written, and the training goes on") == 1


def test_a_file_that_cannot_be_written(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "out" / "iteration_4" / "key_averages.txt").mkdir(parents=True)
    callback = ProfCallback(tmp_path / "out", **{**SHORT, "export_key_averages": True})
    trainer(tmp_path, callback).train()
    assert caplog.text.count("key_averages.txt could not be written") == 1
    assert written(tmp_path / "out" / "iteration_4") == ["key_averages.txt", TRACE]
    assert steps_in(callback.folders[0]) == [2, 3]


def test_torch_that_fails(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def breaks(_: Any) -> None:
        raise RuntimeError("CUPTI is not there")

    monkeypatch.setattr(torch.profiler.profile, "start_trace", breaks)
    run = trainer(tmp_path, ProfCallback(tmp_path / "out", **SHORT))
    run.train()
    assert run.state.global_step == 6
    assert "the profiler failed, and the training goes on without" in caplog.text
    assert written(tmp_path / "out") == []


@pytest.fixture(scope="module")
def stopped() -> Any:
    with torch.profiler.profile(profile_memory=True, with_stack=True, record_shapes=True) as found:
        torch.nn.Linear(8, 8)(torch.ones(8, 8)).sum().backward()
    return found


MEMORY_ONLY = WindowFiles(
    name="rank0", leading=True, key_averages=False, memory=True, stacks=False, by_shape=False,
    by_stack=False,
)  # fmt: skip


@pytest.mark.parametrize("missing", ["matplotlib", "torch"])
def test_what_the_memory_timeline_needs(
    tmp_path: Path, stopped: Any, missing: str,
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    profiler: Any = stopped
    if missing == "matplotlib":
        monkeypatch.setitem(__import__("sys").modules, "matplotlib.pyplot", None)
    else:
        profiler = SimpleNamespace(profiler=stopped.profiler, events=stopped.events)
    assert MEMORY_ONLY.write(profiler, tmp_path / "out")
    assert "rank0_memory_snapshot.pickle" in written(tmp_path / "out")
    assert "rank0_memory-timeline.html" not in written(tmp_path / "out")
    reason = {"matplotlib": "pip install matplotlib",
              "torch": "no export_memory_timeline"}[missing]  # fmt: skip
    assert reason in caplog.text


# --- ranks and arguments ---


def test_ranks(tmp_path: Path) -> None:
    GlobalLogger().setup(tmp_path / "logs", rank=3, world_size=4, console=False)
    try:
        options = {**SHORT, "export_key_averages": True}
        trainer(tmp_path, ProfCallback(tmp_path / "none", ranks=[0, 1], **options)).train()
        trainer(tmp_path, ProfCallback(tmp_path / "mine", ranks=3, **options)).train()
        trainer(tmp_path, ProfCallback(tmp_path / "all", **options)).train()
    finally:
        GlobalLogger().close()
    trace = "rank3.pt.trace.json"
    assert written(tmp_path / "none") == []
    assert written(tmp_path / "mine" / "iteration_4") == ["key_averages.txt", trace]
    assert written(tmp_path / "all" / "iteration_4") == [trace, "rank3_key_averages.txt"]


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"wait_steps": -1}, ValueError, "wait_steps must be at least 0, not -1"),
        ({"warmup_steps": 1.5}, TypeError, "warmup_steps must be an int or None, not 1.5"),
        ({"active_steps": 0}, ValueError, "active_steps must be at least 1, not 0"),
        ({"num_cycles": True}, TypeError, "num_cycles must be an int or None, not True"),
        ({"with_stack": 1}, TypeError, "with_stack must be a bool, not 1"),
        ({"profile_memory": "no"}, TypeError, "profile_memory must be a bool, not 'no'"),
        ({"ranks": "all"}, TypeError, "ranks must be"),
        ({"output_dir": 3}, TypeError, "output_dir must be a path or None, not 3"),
    ],
)
def test_wrong_arguments(arguments: dict[str, Any], error: type, message: str) -> None:
    with pytest.raises(error, match=re.escape(message)):
        ProfCallback(**arguments)


def test_the_defaults() -> None:
    for callback in (ProfCallback(), ProfCallback(None, None, None, None, None)):
        assert callback.output_dir == Path("profiler_output")
        steps = (callback.wait_steps, callback.warmup_steps, callback.active_steps)
        assert (*steps, callback.num_cycles) == (4, 4, 1, 1)
    assert issubclass(ProfCallback, transformers.TrainerCallback)


def test_memory_needs_stacks_and_shapes(caplog: pytest.LogCaptureFixture) -> None:
    callback = ProfCallback(with_stack=False, record_shapes=False)
    assert callback.with_stack and callback.record_shapes
    assert "profile_memory=True sets with_stack=True and record_shapes=True" in caplog.text
    small = ProfCallback(profile_memory=False, with_stack=False, record_shapes=False)
    assert not (small.with_stack or small.record_shapes)


def test_closing_what_never_ran() -> None:
    callback = ProfCallback()
    callback.close()
    callback.close()
    with callback:
        pass


MISSING = """
import sys
sys.modules["transformers"] = None
from my_utils.main import ProfCallback
from my_utils.memory_snapshot import MemorySnapshotter
assert "torch" not in sys.modules
ProfCallback()
"""


def test_without_transformers(run_python: RunPython) -> None:
    done = run_python("-c", MISSING)
    assert done.stderr.rstrip().endswith("pip install transformers accelerate")
    assert "ImportError: ProfCallback needs transformers" in done.stderr


# --- Nsight Systems ---


def test_outside_nsys(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NSYS_PROFILING_SESSION_ID", raising=False)
    monkeypatch.setattr("sys.argv", ["train.py", "--fast"])
    callback = ProfCallback(tmp_path / "out", enable_nsight_systems=True)
    trainer(tmp_path, callback, steps=10).train()
    report = tmp_path / "out" / "nsys_profile.nsys-rep"
    assert f"nsys profile --trace=cuda,nvtx -o {report} python train.py" in caplog.text
    callback = ProfCallback(enable_nsight_systems=True, nsight_systems_output_file="mine.nsys-rep")
    trainer(tmp_path, callback, steps=1).train()
    assert "-o mine.nsys-rep" in caplog.text
    assert written(tmp_path / "out") == []


@no_cuda
def test_under_nsys_without_cuda(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NSYS_PROFILING_SESSION_ID", "7")
    trainer(tmp_path, ProfCallback(tmp_path / "out", enable_nsight_systems=True)).train()
    assert "CUDA is not available" in caplog.text
    assert written(tmp_path / "out") == []


class Calls:
    """Stands for CUDA's part of torch: what is called is written down."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.names: list[str] = []
        self.fail_at = ""
        backend = "my_utils.profilers.torch_profiler.step_windows.CudaProfiler"
        monkeypatch.setattr(backend, lambda: SimpleNamespace(
            start=self.named("start"), stop=self.named("stop")))  # fmt: skip
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.autograd.profiler, "emit_nvtx", self.emit_nvtx)
        record = torch.profiler.record_function

        def mark(name: str) -> Any:
            self.names.append(name)
            return record(name)

        monkeypatch.setattr(torch.profiler, "record_function", mark)

    def named(self, name: str) -> Any:
        def call() -> None:
            self.names.append(name)
            if name == self.fail_at:
                raise RuntimeError("an injected failure")

        return call

    def emit_nvtx(self, record_shapes: bool) -> Any:
        manager = SimpleNamespace(on=self.named("on"), off=self.named("off"))

        class Ranges:
            def __enter__(self) -> None:
                manager.on()

            def __exit__(self, *_: object) -> None:
                manager.off()

        return Ranges()


@pytest.fixture
def cuda_calls(monkeypatch: pytest.MonkeyPatch) -> Calls:
    monkeypatch.setenv("NSYS_PROFILING_SESSION_ID", "7")
    return Calls(monkeypatch)


def drive(callback: Any, steps: int) -> None:
    """The Trainer's calls, without a Trainer that would look for the GPU."""
    state = SimpleNamespace(global_step=0, max_steps=steps, epoch=0.5)
    control = SimpleNamespace(should_evaluate=False, should_save=False, should_training_stop=False)
    callback.on_train_begin(None, state, control)
    for _ in range(steps):
        callback.on_step_begin(None, state, control)
        state.global_step += 1
        callback.on_step_end(None, state, control)
    callback.on_train_end(None, state, control)


def test_a_training_after_one_that_was_interrupted_within_a_step(tmp_path: Path) -> None:
    callback = ProfCallback(tmp_path / "out", 0, 0, 1, profile_memory=False, with_stack=False)
    state = SimpleNamespace(global_step=0, max_steps=2, epoch=0.5)
    control = SimpleNamespace(should_evaluate=False, should_save=False, should_training_stop=False)
    callback.on_train_begin(None, state, control)
    callback.on_step_begin(None, state, control)
    callback.close()
    assert written(tmp_path / "out") == ["iteration_1"]
    callback.on_train_begin(None, state, control)
    callback.on_train_end(None, state, control)  # before its first step
    assert written(tmp_path / "out") == ["iteration_1"]


@no_cuda
def test_the_allocators_history_is_shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A span of MemorySnapshotter round the window goes on behind it."""
    allocator = cuda_allocator.put_in(monkeypatch)
    spans = MemorySnapshotter(tmp_path)
    spans.start("run")
    allocator.allocate(1)
    time.sleep(0.001)  # the allocator's clock has microseconds
    opened = TorchWindow(
        "a test", Steps(0, 0, 1),
        lambda window: MEMORY_ONLY.write(window.profiler, tmp_path / "out", window.history),
        wants_history=True, activities=["cpu"],
    )  # fmt: skip
    opened.go_on(0)
    kept = allocator.allocate(2)
    opened.stop()
    allocator.free(kept)
    run = spans.stop("run")
    assert run is not None
    snapshot = tmp_path / "out" / "rank0_memory_snapshot.pickle"
    sizes = [[event["size"] for event in pickle.loads(path.read_bytes())["device_traces"][0]]
             for path in (snapshot, run)]  # fmt: skip
    assert sizes == [[2], [1, 2, 2, 2]]
    assert allocator.calls == ["record all", "snapshot", "snapshot", "record None"]


@no_cuda
def test_an_allocator_without_history_costs_no_window(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    allocator = cuda_allocator.put_in(monkeypatch)
    allocator.failure = RuntimeError("an injected failure")
    written: list[Any] = []
    window = TorchWindow(
        "a test", Steps(0, 0, 2), written.append, wants_history=True, activities=["cpu"]
    )
    window.go_on(0)
    window.go_on(1)
    window.stop()
    assert len(written) == 1
    assert caplog.text.count("an injected failure") == 1


@no_cuda
def test_under_nsys(tmp_path: Path, cuda_calls: Calls) -> None:
    callback = ProfCallback(
        tmp_path / "out", 1, 1, 2, num_cycles=2, enable_nsight_systems=True
    )  # fmt: skip
    drive(callback, steps=9)
    windows = [["start", "on", f"ProfilerStep#{step}", f"ProfilerStep#{step + 1}", "off", "stop"]
               for step in (2, 6)]  # fmt: skip
    assert cuda_calls.names == windows[0] + windows[1]
    assert written(tmp_path / "out") == []


@no_cuda
@pytest.mark.parametrize(
    ("fail_at", "expected"),
    [
        ("start", ["start"]),
        ("on", ["start", "on", "stop"]),
        ("stop", ["start", "on", "ProfilerStep#2", "ProfilerStep#3", "off", "stop"]),
    ],
)
def test_cuda_that_fails(
    cuda_calls: Calls, fail_at: str, expected: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    cuda_calls.fail_at = fail_at
    drive(ProfCallback("out", 1, 1, 2, enable_nsight_systems=True), steps=6)
    assert cuda_calls.names == expected
    assert "an injected failure" in caplog.text
    assert _slot.holder() is None


@no_cuda
def test_nvtx_ranges_while_another_profiler_runs(
    cuda_calls: Calls, caplog: pytest.LogCaptureFixture
) -> None:
    with torch.profiler.profile():
        drive(ProfCallback("out", 1, 1, 2, enable_nsight_systems=True), steps=6)
    assert cuda_calls.names == []
    assert "runs unprofiled" in caplog.text


@pytest.mark.gpu
def test_on_a_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    callback = ProfCallback(tmp_path / "out")
    trainer(tmp_path, callback, steps=10, use_cpu=False).train()
    (folder,) = callback.folders
    assert len(written(folder)) == 5
    assert any(event.get("cat") == "kernel" for event in events(folder))
    assert "Self CUDA" in (folder / "key_averages.txt").read_text(encoding="utf-8")
    snapshot = pickle.loads((folder / "rank0_memory_snapshot.pickle").read_bytes())
    assert {"segment_type", "blocks"} <= snapshot["segments"][0].keys()
    assert any(snapshot["device_traces"])
    assert not torch._C._cuda_isHistoryEnabled()
    monkeypatch.setenv("NSYS_PROFILING_SESSION_ID", "7")
    trainer(tmp_path, ProfCallback(tmp_path / "nsys", enable_nsight_systems=True), steps=10,
            use_cpu=False).train()  # fmt: skip
    assert written(tmp_path / "nsys") == []


def test_windows_that_are_closed_twice() -> None:
    window = NvtxWindow("a test", Steps(0, 1, 2), record_shapes=False)
    window.stop()
    window.go_on(0)
    window.stop()
    window.stop()


@pytest.fixture(autouse=True)
def warnings_are_seen(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, logger="my_utils")


# --- parameters of others ---


def test_flops_without_the_device(tmp_path: Path) -> None:
    options = {**SHORT, "export_key_averages": True, "record_shapes": True}
    callback = ProfCallback(tmp_path / "out", cpu=True, cuda=False, with_flops=True, **options)
    trainer(tmp_path, callback, steps=5).train()
    (folder,) = callback.folders
    assert "FLOPs" in (folder / "key_averages.txt").read_text()
    assert count(folder, "aten::embedding") > 0
    without = ProfCallback(tmp_path / "without", **options)
    trainer(tmp_path, without, steps=5).train()
    assert "FLOPs" not in (without.folders[0] / "key_averages.txt").read_text()


def test_nothing_to_record_raises() -> None:
    with pytest.raises(ValueError, match="cpu and cuda must not both be False"):
        ProfCallback(cpu=False, cuda=False)
    with pytest.raises(TypeError, match="with_flops must be a bool, not 1"):
        ProfCallback(with_flops=1)  # type: ignore[arg-type]
