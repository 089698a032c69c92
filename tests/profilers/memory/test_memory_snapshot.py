"""Snapshots of the CUDA allocator: which spans write what, and nothing that ends a training.

Without a GPU torch's three functions are stood in for, which shows the order of calls and the form
of files; the tests marked `gpu` look at what torch itself records.
"""

from __future__ import annotations

import logging
import pickle
import re
import time
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="torch is not installed")
import torch
from torch.cuda import _memory_viz

from my_utils.memory_snapshot import MemorySnapshotter, NoOpMemorySnapshotter
from my_utils.profilers.memory import memory_history as _memory_history, memory_snapshot
from my_utils.profiling.backends import MemorySnapshotBackend

from ...conftest import RunPython
from ...fakes.cuda_allocator import FakeAllocator, put_in

no_cuda = pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")


@pytest.fixture
def allocator(monkeypatch: pytest.MonkeyPatch) -> FakeAllocator:
    return put_in(monkeypatch)


def sizes(path: Path | None) -> list[int]:
    """Of the allocations that a snapshot saw; torch's own tools must be able to read it."""
    assert path is not None
    with open(path, "rb") as file:
        snapshot: dict[str, Any] = pickle.load(file)
    assert {"segments", "device_traces"} <= snapshot.keys()
    (trace,) = snapshot["device_traces"]
    allocations = [event["size"] for event in trace if event["action"] == "alloc"]
    assert f"{len(trace)} entries" in _memory_viz.trace(snapshot) or not trace
    assert "segments: 1" in _memory_viz.segsum(snapshot)
    for html in (_memory_viz.trace_plot(snapshot), _memory_viz.segment_plot(snapshot)):
        assert "MemoryViz.js" in html
    return allocations


def test_nested_spans(tmp_path: Path, allocator: FakeAllocator) -> None:
    snapshotter = MemorySnapshotter(tmp_path, max_entries=77, stacks="python", context="alloc")
    snapshotter.start("outer")
    allocator.allocate(100)
    time.sleep(0.001)
    snapshotter.start("inner")
    allocator.allocate(200)
    assert snapshotter.open_names == ("outer", "inner")
    inner = snapshotter.stop("inner")
    allocator.allocate(400)
    outer = snapshotter.stop("outer")

    assert allocator.calls == ["record all", "snapshot", "snapshot", "record None"]
    assert sizes(inner) == [200]
    assert sizes(outer) == [100, 200, 400]
    assert snapshotter.paths == [inner, outer]
    assert sorted(tmp_path.iterdir()) == sorted(snapshotter.paths)
    for path, name in zip(snapshotter.paths, ("inner", "outer"), strict=True):
        assert re.fullmatch(rf"{name}__\d{{8}}_\d{{6}}_\d{{6}}__rank0\.pt", path.name)


def test_options_reach_torch(tmp_path: Path, allocator: FakeAllocator) -> None:
    snapshotter = MemorySnapshotter(tmp_path, max_entries=77, stacks="python", context="alloc")
    with snapshotter.span("step"):
        assert allocator.options == {"max_entries": 77, "stacks": "python", "context": "alloc"}


def test_spans_that_overlap(tmp_path: Path, allocator: FakeAllocator) -> None:
    snapshotter = MemorySnapshotter(tmp_path)
    snapshotter.start("a")
    allocator.allocate(100)
    time.sleep(0.001)
    snapshotter.start("b")
    allocator.allocate(200)
    assert sizes(snapshotter.stop("a")) == [100, 200]
    assert allocator.enabled
    allocator.allocate(400)
    assert sizes(snapshotter.stop("b")) == [200, 400]
    assert not allocator.enabled


def test_started_twice_and_stopped_unstarted(
    tmp_path: Path, allocator: FakeAllocator, caplog: pytest.LogCaptureFixture
) -> None:
    snapshotter = MemorySnapshotter(tmp_path)
    assert snapshotter.stop("step") is None
    assert "memory snapshot 'step' was not started" in caplog.text
    snapshotter.start("step")
    allocator.allocate(100)
    snapshotter.start("step")
    assert "memory snapshot 'step' is being taken already" in caplog.text
    assert sizes(snapshotter.stop("step")) == [100]
    assert snapshotter.stop("step") is None
    assert len(list(tmp_path.iterdir())) == 1


def test_a_block_that_raises(tmp_path: Path, allocator: FakeAllocator) -> None:
    snapshotter = MemorySnapshotter(tmp_path)
    with pytest.raises(torch.OutOfMemoryError, match="mine"), snapshotter.span("step"):
        allocator.allocate(300)
        raise torch.OutOfMemoryError("mine")
    assert sizes(snapshotter.paths[0]) == [300]
    assert not allocator.enabled


def test_a_history_of_the_program_itself_goes_on(tmp_path: Path, allocator: FakeAllocator) -> None:
    allocator.record_memory_history()
    allocator.allocate(100)
    time.sleep(0.001)
    snapshotter = MemorySnapshotter(tmp_path)
    with snapshotter.span("step"):
        allocator.allocate(200)
    assert sizes(snapshotter.paths[0]) == [200]
    assert allocator.enabled
    assert allocator.calls == ["record all", "snapshot"]


def test_with_the_backend_of_capture_windows(tmp_path: Path, allocator: FakeAllocator) -> None:
    snapshotter = MemorySnapshotter(tmp_path / "a")
    backend = MemorySnapshotBackend(tmp_path / "b", rank=3)
    snapshotter.start("run")
    allocator.allocate(100)
    time.sleep(0.001)
    backend.start_window("window")
    allocator.allocate(200)
    backend.stop_window("window")
    allocator.allocate(400)
    snapshotter.stop("run")
    assert backend.snapshots == [tmp_path / "b" / "window__rank3.pickle"]
    assert sizes(backend.snapshots[0]) == [200]
    assert sizes(snapshotter.paths[0]) == [100, 200, 400]
    assert allocator.calls == ["record all", "snapshot", "snapshot", "record None"]


@pytest.mark.parametrize("failing", ["folder", "torch"])
def test_a_snapshot_that_cannot_be_written(
    failing: str, tmp_path: Path, allocator: FakeAllocator, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    snapshotter = MemorySnapshotter(tmp_path / "file" if failing == "folder" else tmp_path)
    snapshotter.start("step")
    if failing == "torch":
        allocator.failure = RuntimeError("the allocator is broken")
    assert snapshotter.stop("step") is None
    assert "memory snapshot 'step' could not be written" in caplog.text
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    allocator.failure = None
    assert "record None" in allocator.calls
    with MemorySnapshotter(tmp_path).span("later"):
        allocator.allocate(100)
    assert len(list(tmp_path.iterdir())) == 2


def test_an_allocator_that_keeps_no_history(
    tmp_path: Path, allocator: FakeAllocator, caplog: pytest.LogCaptureFixture
) -> None:
    allocator.failure = RuntimeError("cudaMallocAsync does not record")
    snapshotter = MemorySnapshotter(tmp_path)
    for _ in range(3):
        with snapshotter.span("step"):
            pass
    assert caplog.text.count("cudaMallocAsync does not record") == 1
    assert list(tmp_path.iterdir()) == []


def test_names_that_no_file_can_have(tmp_path: Path, allocator: FakeAllocator) -> None:
    snapshotter = MemorySnapshotter(tmp_path)
    with snapshotter.span("../up/step 3"):
        pass
    (path,) = tmp_path.iterdir()
    assert path.name.startswith("_up_step_3__") and path == snapshotter.paths[0]
    with snapshotter.span("step" * 80):
        pass
    assert re.fullmatch(r"[step]+-\w{8}__\d{8}_\d{6}_\d{6}__rank0\.pt", snapshotter.paths[1].name)


def test_other_ranks_do_nothing(
    tmp_path: Path, allocator: FakeAllocator, caplog: pytest.LogCaptureFixture
) -> None:
    snapshotter = MemorySnapshotter(tmp_path, ranks=[1, 2])
    snapshotter.start("step")
    assert snapshotter.stop("step") is None
    assert allocator.calls == [] and caplog.text == ""


def test_folder_and_rank_of_the_logger(
    tmp_path: Path, allocator: FakeAllocator, monkeypatch: pytest.MonkeyPatch
) -> None:
    from my_utils import GlobalLogger

    monkeypatch.chdir(tmp_path)
    snapshotter = MemorySnapshotter()
    with snapshotter.span("here"):
        pass
    GlobalLogger().setup(tmp_path / "logs", rank=5, console=False)
    try:
        with snapshotter.span("there"):
            pass
    finally:
        GlobalLogger().close()
    here, there = snapshotter.paths
    assert here.parent == tmp_path and here.name.endswith("__rank0.pt")
    assert there.parent == tmp_path / "logs" and there.name.endswith("__rank5.pt")


def test_events_without_a_time_are_kept() -> None:
    snapshot = {"segments": [], "device_traces": [[{"time_us": 5}, {"action": "oom"}], []]}
    assert _memory_history.trimmed(snapshot, 6)["device_traces"] == [[{"action": "oom"}], []]
    assert snapshot["device_traces"][0][0] == {"time_us": 5}


@pytest.mark.parametrize(
    ("arguments", "error", "named"),
    [
        ({"output": 3}, TypeError, "output"),
        ({"max_entries": "many"}, TypeError, "max_entries"),
        ({"max_entries": True}, TypeError, "max_entries"),
        ({"max_entries": 0}, ValueError, "max_entries"),
        ({"ranks": "0"}, TypeError, "ranks"),
        ({"context": "some"}, ValueError, "context"),
        ({"stacks": None}, ValueError, "stacks"),
    ],
)
def test_wrong_arguments(arguments: dict[str, Any], error: type[Exception], named: str) -> None:
    with pytest.raises(error, match=named):
        MemorySnapshotter(**arguments)


@pytest.mark.parametrize(("name", "error"), [(3, TypeError), ("", ValueError)])
def test_wrong_names(name: Any, error: type[Exception]) -> None:
    for call in (MemorySnapshotter().start, MemorySnapshotter().stop):
        with pytest.raises(error, match="name must"):
            call(name)


def test_the_no_op_has_the_same_surface() -> None:
    no_op = NoOpMemorySnapshotter("folder", max_entries=3)
    no_op.start("a")
    with no_op.span("b"):
        assert no_op.open_names == ()
    assert no_op.stop("a") is None
    no_op.close()
    public = {name for name in dir(MemorySnapshotter(max_entries=3)) if not name.startswith("_")}
    options = {"output", "output_dir", "max_entries", "ranks", "context", "stacks"}
    assert public - options <= set(dir(no_op))


@no_cuda
def test_without_cuda_one_clear_message(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    snapshotter = MemorySnapshotter(tmp_path)
    with caplog.at_level(logging.WARNING):
        for name in ("a", "b"):
            snapshotter.start(name)
            assert snapshotter.stop(name) is None
    (record,) = caplog.records
    assert "CUDA is not available; nothing is recorded" in record.getMessage()
    assert list(tmp_path.iterdir()) == []


@no_cuda
def test_the_global_one_by_the_environment(run_python: RunPython, tmp_path: Path) -> None:
    script = """if True:
        from my_utils.memory_snapshot import global_snapshotter
        print(type(global_snapshotter).__name__)
        global_snapshotter.start("outer")
        global_snapshotter.start("inner")
        global_snapshotter.stop("inner")
        global_snapshotter.stop("outer")
        import sys
        print("torch" in sys.modules)
    """
    on = run_python("-c", script, env={"ENABLE_MEMORY_SNAPSHOT": "1"})
    assert on.returncode == 0, on.stderr
    assert on.stdout.split() == ["MemorySnapshotter", "True"]
    assert on.stderr.count("CUDA is not available") == 1
    for value in ("", "0"):
        off = run_python("-c", script, env={"ENABLE_MEMORY_SNAPSHOT": value})
        assert off.stdout.split() == ["NoOpMemorySnapshotter", "False"]
        assert off.stderr == ""
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_the_end_of_the_process_and_forked_children(run_python: RunPython, tmp_path: Path) -> None:
    done = run_python("-c", """if True:
        import os, pytest
        from tests.fakes.cuda_allocator import put_in
        from my_utils.memory_snapshot import MemorySnapshotter
        allocator = put_in(pytest.MonkeyPatch())
        def begin():
            snapshotter = MemorySnapshotter("out")
            snapshotter.start("outer")
            snapshotter.start("inner")
            allocator.allocate(100)
            return snapshotter.open_names
        print(begin(), flush=True)
        if os.fork() == 0:
            import sys
            from my_utils.profilers.memory import memory_snapshot
            assert not memory_snapshot._with_open
            memory_snapshot._with_open.close_all()
            assert not os.path.exists("out")
            sys.exit(0)
        print(os.wait()[1])
    """)  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["('outer', 'inner')", "0"]
    inner, outer = sorted((tmp_path / "out").iterdir())
    assert inner.name.startswith("inner__") and outer.name.startswith("outer__")
    assert sizes(outer) == [100]


@pytest.mark.gpu
def test_what_torch_records_on_a_gpu(tmp_path: Path) -> None:
    snapshotter = MemorySnapshotter(tmp_path)
    torch.zeros(1, device="cuda")
    snapshotter.start("outer")
    before = torch.zeros(3 << 20, dtype=torch.uint8, device="cuda")
    time.sleep(0.01)
    with snapshotter.span("inner"):
        inside = torch.zeros(5 << 20, dtype=torch.uint8, device="cuda")
    after = torch.zeros(7 << 20, dtype=torch.uint8, device="cuda")
    snapshotter.stop("outer")
    assert not torch._C._cuda_isHistoryEnabled()

    seen = []
    for path in snapshotter.paths:
        snapshot = pickle.loads(path.read_bytes())
        events = snapshot["device_traces"][torch.cuda.current_device()]
        seen.append([e["size"] >> 20 for e in events if e["action"] == "alloc"])
        frames = [f for e in events if e["action"] == "alloc" for f in e["frames"]]
        assert any(frame["filename"] == __file__ for frame in frames)
        assert _memory_viz.trace(snapshot) and _memory_viz.segsum(snapshot)
    assert seen == [[5], [3, 5, 7]]
    del before, inside, after


@pytest.mark.gpu
def test_the_program_s_own_history_on_a_gpu(tmp_path: Path) -> None:
    torch.cuda.memory._record_memory_history(max_entries=1000)
    try:
        with MemorySnapshotter(tmp_path).span("step"):
            torch.zeros(8, device="cuda")
        assert torch._C._cuda_isHistoryEnabled()
    finally:
        torch.cuda.memory._record_memory_history(None)


def test_nothing_stays_open_after_these_tests() -> None:
    assert not memory_snapshot._with_open


# --- as others call it ---


def test_save_dir_and_set_logger(
    allocator: FakeAllocator, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    snapshotter = MemorySnapshotter(save_dir=tmp_path / "there")  # type: ignore[call-arg]
    snapshotter.start("step")
    path = snapshotter.stop("step")
    assert path is not None and path.parent == tmp_path / "there"
    snapshotter.set_logger(logging.getLogger("mine"))
    snapshotter.stop("never started")
    snapshotter.set_logger(None)
    snapshotter.stop("never started")
    assert [record.name for record in caplog.records] == ["mine", "my_utils"]
    with pytest.raises(TypeError, match="got output and save_dir, which are the same"):
        MemorySnapshotter(tmp_path, save_dir=tmp_path)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"logger must be a logging.Logger or None"):
        snapshotter.set_logger("mine")  # type: ignore[arg-type]
    NoOpMemorySnapshotter(save_dir=tmp_path).set_logger(None)  # type: ignore[call-arg]
