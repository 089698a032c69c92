"""What windows start and stop: traces that open, one profiler at a time, no GPU at all."""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="torch is not installed")
import torch

from my_utils.csv2trace import csv_to_trace
from my_utils.profilers.torch_profiler import slot as _slot
from my_utils.profiling.backends import (
    CaptureBackend,
    CudaProfilerBackend,
    MemorySnapshotBackend,
    MultiBackend,
    NoOpBackend,
    TorchProfilerBackend,
)
from my_utils.profiling.capture_controller import CaptureController
from my_utils.utils import MyTimer

from ...clients.perfetto import TraceProcessor, why_missing
from ...support.profile_rows import Profile

no_cuda = pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
with_cuda = pytest.mark.gpu


def work() -> None:
    torch.ones(8, 8) @ torch.ones(8, 8)


def names_in(trace: Path) -> set[str]:
    content: dict[str, Any] = json.loads(trace.read_text(encoding="utf-8"))
    return {event["name"] for event in content["traceEvents"]}


def capture(backend: CaptureBackend, *steps: int) -> CaptureController:
    """Three steps, of which those are captured."""
    controller = CaptureController(backend)
    for step in steps:
        controller.arm({
            "window_id": f"step {step}", "start_profile_names": ["train"], "start_iter": step,
        })  # fmt: skip
    for step in range(3):
        with controller.hook("train", iter=step), torch.profiler.record_function(f"mark{step}"):
            work()
    return controller


def test_a_window_that_another_profiler_kept_from_recording_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    backend = TorchProfilerBackend(tmp_path, rank=0)
    with torch.profiler.profile() as own:
        controller = capture(backend, 1)
    assert controller.outcomes == {"step 1": "failed"}
    assert controller.state_of("step 1") == (
        "failed: a torch.profiler.profile of the program was recording"
    )
    assert backend.traces == [] and "mark1" in {event.key for event in own.key_averages()}
    assert sum("runs unprofiled" in record.message for record in caplog.records) == 1
    assert not any(record.exc_info for record in caplog.records)
    assert capture(backend, 2).outcomes == {"step 2": "done"} and len(backend.traces) == 1


def test_nor_does_one_of_several_pass_for_done(tmp_path: Path) -> None:
    backend = TorchProfilerBackend(tmp_path, rank=0)
    with torch.profiler.profile():
        controller = capture(MultiBackend([NoOpBackend(), backend]), 1)
    assert controller.state_of("step 1") == (
        "failed: a torch.profiler.profile of the program was recording"
    )
    assert capture(MultiBackend([NoOpBackend(), backend]), 2).outcomes == {"step 2": "done"}
    assert backend.traces == [tmp_path / "step_2__rank0.json"]


def test_a_trace_a_window(tmp_path: Path) -> None:
    backend = TorchProfilerBackend(tmp_path / "traces", rank=3)
    controller = capture(backend, 0, 2)
    assert controller.outcomes == {"step 0": "done", "step 2": "done"}
    assert [path.name for path in backend.traces] == ["step_0__rank3.json", "step_2__rank3.json"]
    for path, mark in zip(backend.traces, ("mark0", "mark2"), strict=True):
        names = names_in(path)
        assert {name for name in names if name.startswith("mark")} == {mark}
        assert "aten::mm" in names
    assert sorted(os.listdir(tmp_path / "traces")) == ["step_0__rank3.json", "step_2__rank3.json"]
    assert _slot.holder() is None


def test_a_window_in_perfetto_beside_the_stages_of_a_timer(
    profile: Profile, tmp_path: Path
) -> None:
    if why_missing() is not None:
        pytest.skip(str(why_missing()))
    backend = TorchProfilerBackend(tmp_path, rank=0)
    timer = MyTimer(tag="train")
    timer.set_step(0)
    with timer.time_stage("three steps"):
        capture(backend, 1)
    timer.step()
    profile.ended()
    out = tmp_path / "joined.pftrace"
    assert csv_to_trace(profile.folder, out, merge=backend.traces).messages() == []
    with TraceProcessor(out) as perfetto:
        assert perfetto.complaints() == {}
        slices = perfetto.query("select name, ts, ts + dur as end from slice where dur >= 0")
    (stage,) = (each for each in slices if each["name"] == "three steps")
    (product,) = (each for each in slices if each["name"] == "aten::mm")
    assert stage["ts"] < product["ts"] < product["end"] < stage["end"]
    assert "mark1" in {each["name"] for each in slices}


def test_long_window_ids_are_cut_and_stay_apart(tmp_path: Path) -> None:
    backend = TorchProfilerBackend(tmp_path, rank=0)
    controller = CaptureController(backend)
    ids = ["step/" * 60 + end for end in "ab"]
    for window_id in ids:
        controller.arm({"window_id": window_id, "start_profile_names": ["train"]})
        with controller.hook("train"):
            work()
    assert controller.outcomes == dict.fromkeys(ids, "done")
    assert len(backend.traces) == 2
    for path in backend.traces:
        assert path.name.startswith("step_step_") and path.name.endswith("__rank0.json")
        assert "aten::mm" in names_in(path)
    assert not any(path.name.endswith(".2.json") for path in backend.traces)


def test_a_second_window_of_a_name_is_numbered(tmp_path: Path) -> None:
    for _ in range(2):
        capture(TorchProfilerBackend(tmp_path, rank=0), 1)
    assert sorted(os.listdir(tmp_path)) == ["step_1__rank0.2.json", "step_1__rank0.json"]


def test_options_reach_the_profiler(tmp_path: Path) -> None:
    capture(TorchProfilerBackend(tmp_path, rank=0, record_shapes=True), 1)
    content = json.loads((tmp_path / "step_1__rank0.json").read_text(encoding="utf-8"))
    shapes = [event["args"].get("Input Dims") for event in content["traceEvents"]
              if event["name"] == "aten::mm"]  # fmt: skip
    assert shapes == [[[8, 8], [8, 8]]]


def test_options_that_are_wrong_end_the_window(tmp_path: Path) -> None:
    controller = capture(TorchProfilerBackend(tmp_path, colour="red"), 1)
    assert controller.outcomes == {"step 1": "failed"}
    assert _slot.holder() is None


def test_a_folder_that_cannot_be_made(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("")
    controller = capture(TorchProfilerBackend(tmp_path / "file" / "traces", rank=0), 1)
    assert controller.outcomes == {"step 1": "failed"}
    assert "could not be stopped" in caplog.text
    assert _slot.holder() is None


@no_cuda
def test_without_cuda_there_is_one_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        controller = capture(
            MultiBackend([CudaProfilerBackend(), MemorySnapshotBackend(tmp_path), NoOpBackend()]),
            0, 1, 2,
        )  # fmt: skip
    assert set(controller.outcomes.values()) == {"done"}
    assert caplog.text.count("CudaProfilerBackend: CUDA is not available") == 1
    assert caplog.text.count("MemorySnapshotBackend: CUDA is not available") == 1
    assert list(tmp_path.iterdir()) == []


@with_cuda
def test_on_a_gpu(tmp_path: Path) -> None:
    backend = MemorySnapshotBackend(tmp_path, rank=0)
    controller = capture(MultiBackend([CudaProfilerBackend(), backend]), 1)
    assert controller.outcomes == {"step 1": "done"}
    assert backend.snapshots == [tmp_path / "step_1__rank0.pickle"]
