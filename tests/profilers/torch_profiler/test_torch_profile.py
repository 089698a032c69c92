"""torch's profiler in the slot: who gets it, what happens to errors, and traces that are whole."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="torch is not installed")
import torch

from my_utils.profilers.torch_profiler import slot as _slot
from my_utils.profilers.torch_profiler.torch_profile import (
    Steps,
    TorchProfile,
    export_trace,
    on_this_machine,
)

from ...conftest import RunPython

LEFT_RUNNING = """
import torch
from my_utils.profilers.torch_profiler.torch_profile import TorchProfile
profile = TorchProfile("a test", lambda profile: print("closed", not profile.running))
profile.start()
torch.ones(3) + 1
"""

ANOTHER_THREAD = """
import json, sys, threading
import torch
from my_utils.profilers.torch_profiler import slot as _slot
from my_utils.profilers.torch_profiler.torch_profile import TorchProfile, export_trace

def in_a_thread(function):
    thread = threading.Thread(target=function)
    thread.start()
    thread.join()

def tried(action):
    try:
        action()
    except RuntimeError as error:
        print(error)

ready = []
for action in ("stop", "step"):
    profile = TorchProfile("a test", ready.append)
    in_a_thread(profile.start)
    in_a_thread(lambda: tried(getattr(profile, action)))  # maybe with the same get_ident()
    assert not profile.running and profile.profiler is None and _slot.holder() is None
    profile.stop()
assert ready == []
profile = TorchProfile("the next")
profile.start()
torch.ones(4) + 1
profile.stop()
trace = json.loads(export_trace(profile.profiler, "trace.json").read_text())
assert any(event["name"] == "aten::add" for event in trace["traceEvents"])
"""


def names_in(trace: Path) -> set[str]:
    return {event["name"] for event in json.loads(trace.read_bytes())["traceEvents"]}


def test_a_trace(tmp_path: Path) -> None:
    profile = TorchProfile("a test")
    assert profile.start()
    torch.ones(4, 4) @ torch.ones(4, 4)
    profile.stop()
    profile.stop()
    assert "aten::mm" in names_in(export_trace(profile.profiler, tmp_path / "trace.json"))
    assert os.listdir(tmp_path) == ["trace.json"]


def test_a_second_export_leaves_the_first_alone(tmp_path: Path) -> None:
    profile = TorchProfile("a test")
    profile.start()
    torch.ones(4) + 1
    profile.stop()
    path = export_trace(profile.profiler, tmp_path / "trace.json")
    before = path.read_bytes()
    with pytest.raises(RuntimeError):
        export_trace(profile.profiler, path)
    assert (path.read_bytes(), os.listdir(tmp_path)) == (before, ["trace.json"])


@pytest.mark.parametrize("folder", ["plain", 'with "quotes" and [x]}'])
def test_the_name_in_a_trace_is_that_of_the_file(tmp_path: Path, folder: str) -> None:
    (tmp_path / folder).mkdir()
    with torch.profiler.profile() as profile:
        torch.ones(4) + 1
    path = export_trace(profile, tmp_path / folder / "trace.json")
    trace = json.loads(path.read_text(encoding="utf-8"))
    assert trace["traceName"] == str(path)
    assert any(event["name"] == "aten::add" for event in trace["traceEvents"])


def test_a_trace_that_torch_leaves_unfinished_is_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with torch.profiler.profile() as profile:
        torch.ones(4) + 1
    whole = export_trace(profile, tmp_path / "whole.json").read_bytes()
    for length in (0, 1, len(whole) // 2, len(whole) - 3):

        def cut(path: str, length: int = length) -> None:
            Path(f"{path}.tmp").write_bytes(b"")
            Path(path).write_bytes(whole[:length])

        monkeypatch.setattr(profile, "export_chrome_trace", cut)
        with pytest.raises(OSError, match="is the disk full"):
            export_trace(profile, tmp_path / "cut.json")
    assert os.listdir(tmp_path) == ["whole.json"]


@pytest.mark.slow
def test_another_thread_cannot_end_it(run_python: RunPython) -> None:
    """torch would crash in the export."""
    done = run_python("-c", ANOTHER_THREAD)
    assert done.returncode == 0, done.stderr
    told = "a test was started in another thread; torch's profiler belongs to a thread"
    assert done.stdout.count(told) == 2


def test_the_slot_is_taken(caplog: pytest.LogCaptureFixture) -> None:
    first, second = TorchProfile("one run"), TorchProfile("another run")
    assert first.start()
    with pytest.raises(RuntimeError, match="one run is profiling already"):
        first.start()
    assert not second.start()
    second.step()
    second.stop()
    assert first.running
    assert "another run runs unprofiled: one run is profiling" in caplog.text
    first.stop()
    assert second.start()
    second.stop()


def test_wrong_options_go_through_and_give_the_slot_back() -> None:
    with pytest.raises(TypeError, match="colour"):
        TorchProfile("a test", colour="red").start()
    assert _slot.holder() is None


def test_what_was_recorded_is_written_once() -> None:
    written: list[TorchProfile] = []
    steps = Steps(first=0, active=1, end=2)
    in_warm_up = TorchProfile("a test", written.append, steps=steps)
    in_warm_up.start()
    in_warm_up.stop()
    profile = TorchProfile("a test", written.append, steps=steps)
    profile.start()
    profile.step()
    torch.ones(4) + 1
    profile.stop()
    profile.stop()
    assert written == [profile]
    assert "aten::add" in {event.name for event in profile.profiler.events()}


def test_what_writing_raises_goes_through() -> None:
    def fails(_: TorchProfile) -> None:
        raise OSError("no space left")

    profile = TorchProfile("a test", fails)
    profile.start()
    with pytest.raises(OSError, match="no space left"):
        profile.stop()
    assert _slot.holder() is None


@pytest.mark.slow
def test_one_left_running_is_stopped_at_exit(run_python: RunPython) -> None:
    result = run_python("-c", LEFT_RUNNING)
    assert result.stdout == "closed True\n", result.stderr
    assert result.returncode == 0


@pytest.mark.parametrize(
    ("asked", "with_device", "without"),
    [
        ("self_cuda_time_total", "self_device_time_total", "self_cpu_time_total"),
        ("cuda_time", "device_time", "cpu_time"),
        ("self_device_time_total", "self_device_time_total", "self_cpu_time_total"),
        ("cpu_time_total", "cpu_time_total", "cpu_time_total"),
        ("self_cuda_memory_usage", "self_device_memory_usage", "self_device_memory_usage"),
    ],
)
def test_names_of_figures(asked: str, with_device: str, without: str) -> None:
    assert on_this_machine(asked, has_device=True) == with_device
    assert on_this_machine(asked, has_device=False) == without
