"""Stage times in TensorBoard, Weights & Biases and Prometheus, read back with their own readers."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from my_utils import MyTimer
from my_utils.core.warnings import forget
from my_utils.record.exporters import PrometheusExporter, TensorBoardExporter, WandbExporter
from my_utils.record.exporters.exporter import QUEUE_MAX, Snapshot
from my_utils.record.exporters.totals import Means, StageTotal, read_totals
from my_utils.timing import TimeManager
from my_utils.utils import NoOpMyTimer

from ...conftest import RunPython

pytestmark = pytest.mark.no_torch
needs_tensorboard = pytest.mark.skipif(
    find_spec("tensorboard") is None, reason="tensorboard is not installed"
)


def scalars_in(folder: Path) -> dict[str, list[tuple[int, float]]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    read = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    read.Reload()
    return {
        tag: [(event.step, event.value) for event in read.Scalars(tag)]
        for tag in read.Tags()["scalars"]
    }


def metrics_in(path: Path) -> dict[tuple[str, ...], float]:
    """By the name of the sample, the stage, and the quantile where there is one."""
    from prometheus_client.parser import text_string_to_metric_families

    found: dict[tuple[str, ...], float] = {}
    for family in text_string_to_metric_families(path.read_text()):
        for sample in family.samples:
            quantile = [sample.labels[name] for name in sample.labels if name == "quantile"]
            found[sample.name, sample.labels.get("stage", ""), *quantile] = sample.value
    return found


@pytest.fixture
def at_steps_only(monkeypatch: pytest.MonkeyPatch) -> float:
    """An interval that does not end in a test; the thread looks into its queue often."""
    monkeypatch.setattr("my_utils.record.exporters.exporter.WAKE_S", 0.01)
    return 1000.0


def wait_for(happened: Callable[[], object]) -> None:
    deadline = time.monotonic() + 60
    while not happened():
        assert time.monotonic() < deadline
        time.sleep(0.01)


# --- totals ---


def test_totals_agree_with_the_aggregates() -> None:
    timer = MyTimer(tag="exporter totals")

    def work() -> None:
        for _ in range(50):
            with timer.time_stage("iter"), timer.time_stage("forward"):
                pass

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    work()
    totals = read_totals(timer)
    assert list(totals) == ["iter", "iter/forward"]
    for names, calls, ns, *_ in timer.aggregates():
        assert totals["/".join(names)] == StageTotal(calls, ns)
    assert totals["iter"].calls == 200
    assert read_totals(NoOpMyTimer()) == {}


@pytest.mark.parametrize("max_samples", [2, 1000])
def test_totals_of_a_time_manager(max_samples: int) -> None:
    manager = TimeManager({"a": [0.5, 0.25, 1.0], "b": [2.0]}, max_samples=max_samples)
    assert manager.totals() == [("a", 3, 1_750_000_000), ("b", 1, 2_000_000_000)]
    manager.clear()
    assert manager.totals() == []


def test_means_between_two_looks() -> None:
    means = Means("t")
    assert means.since_last({"a": StageTotal(2, 4_000_000, 1, 5_000_000)}) == {
        "t/a": 2.0, "gpu_t/a": 5.0
    }  # fmt: skip
    assert means.since_last({"a": StageTotal(2, 4_000_000, 1, 5_000_000)}) == {}
    later = {"a": StageTotal(3, 10_000_000, 1, 5_000_000), "b": StageTotal(1, 1_000_000)}
    assert means.since_last(later) == {"t/a": 6.0, "t/b": 1.0}
    cleared = {"b": StageTotal(1, 1_000_000), "a": StageTotal(1, 3_000_000)}
    assert means.since_last(cleared) == {"t/a": 3.0}


# --- TensorBoard ---


@needs_tensorboard
def test_times_that_are_cleared_between_points_count(tmp_path: Path) -> None:
    """As a loop does that gathers its times and forgets them, again and again."""
    manager = TimeManager({"load": [9.0], "gone": [1.0]})
    manager.clear()  # before there was an exporter
    with TensorBoardExporter(manager, tmp_path) as exporter:
        for step, seconds in enumerate(([1.0], [0.5], [0.125, 0.375], [])):
            for each in seconds:
                manager.add("load", round(each * 1e9))
            exporter.step(step)
            manager.clear()
        manager.add("load", 2_000_000_000)
        manager.clear()
        exporter.step(4)
    assert scalars_in(tmp_path) == {
        "time/load": [(0, 1000.0), (1, 500.0), (2, 250.0), (4, 2000.0)],
    }


def test_stages_of_one_path_are_added() -> None:
    timer = MyTimer(use_cuda=False)
    for name in ("a/b", "a"):
        with timer.time_stage(name), timer.time_stage("b" if name == "a" else "c"):
            pass
    totals = read_totals(timer)
    assert totals["a/b"].calls == 2
    assert totals["a/b"].ns == sum(ns for names, _, ns, *_ in timer.totals()
                                   if "/".join(names) == "a/b")  # fmt: skip


@needs_tensorboard
def test_a_point_a_step(tmp_path: Path) -> None:
    manager = TimeManager()
    with TensorBoardExporter(manager, tmp_path / "run") as exporter:
        for step in range(5, 8):
            manager.add("forward", step * 1_000_000)
            manager.add("forward", step * 3_000_000)
            if step == 6:
                manager.add("data/load", 500_000)
            exporter.step(step)
    assert scalars_in(tmp_path / "run") == {
        "time/forward": [(5, 10.0), (6, 12.0), (7, 14.0)],
        "time/data/load": [(6, 0.5)],
    }
    (file,) = (tmp_path / "run").iterdir()  # one writer, and no folders beside it
    assert ".tfevents." in file.name
    assert (exporter.written, exporter.failed, exporter.dropped) == (3, 0, 0)
    exporter.close()
    exporter.step(9)
    assert exporter.written == 3


@needs_tensorboard
def test_steps_of_a_timer(tmp_path: Path) -> None:
    timer = MyTimer(tag="exporter steps")
    with TensorBoardExporter(timer, tmp_path, every_steps=2, prefix="ms") as exporter:
        for step in range(10, 16):
            timer.set_step(step)
            with timer.time_stage("iter"), timer.time_stage("forward"):
                time.sleep(0.001)
            timer.step()
            exporter.step()
    found = scalars_in(tmp_path)
    assert set(found) == {"ms/iter", "ms/iter/forward"}
    assert [step for step, _ in found["ms/iter"]] == [11, 13, 15]
    assert all(value >= 1 for _, value in found["ms/iter/forward"])
    total_ms = sum(row[2] for row in timer.aggregates() if row[0] == ("iter",)) * 1e-6
    assert 2 * sum(value for _, value in found["ms/iter"]) == pytest.approx(total_ms, rel=1e-4)


@needs_tensorboard
def test_the_end_writes_the_steps_that_are_left(tmp_path: Path) -> None:
    timer = MyTimer(tag="exporter rest")
    with TensorBoardExporter(timer, tmp_path, every_steps=4) as exporter:
        for step in range(6):
            timer.set_step(step)
            with timer.time_stage("iter"):
                pass
            exporter.step(100 + step)
    (found,) = scalars_in(tmp_path).values()
    assert [step for step, _ in found] == [103, 105]
    exporter.close()
    assert exporter.written == 2


@needs_tensorboard
def test_at_an_interval(tmp_path: Path) -> None:
    timer = MyTimer(tag="exporter interval")
    timer.set_step(3)
    exporter = TensorBoardExporter(timer, tmp_path, every_s=0.05)
    with timer.time_stage("iter"):
        pass
    wait_for(lambda: scalars_in(tmp_path) if tmp_path.exists() and any(tmp_path.iterdir()) else 0)
    timer.set_step(4)
    with timer.time_stage("iter"):
        pass
    exporter.close()
    assert [step for step, _ in scalars_in(tmp_path)["time/iter"]] == [3, 4]


@needs_tensorboard
def test_a_look_at_the_interval_is_not_written_behind_the_first_step(tmp_path: Path) -> None:
    manager = TimeManager({"load": [0.001]})
    looks, stepped = threading.Event(), threading.Event()

    class Slow(TensorBoardExporter):
        def _snapshot(self, step: int | None) -> Snapshot:
            snapshot = super()._snapshot(step)
            if step is None:
                looks.set()
                stepped.wait(0.5)
            return snapshot

    with Slow(manager, tmp_path, every_s=0.01) as exporter:
        looks.wait()
        manager.add("load", 7_000_000)
        exporter.step(5)
        stepped.set()
    assert scalars_in(tmp_path) == {"time/load": [(0, 1.0), (5, 7.0)]}


@needs_tensorboard
def test_beside_a_writer_of_the_users(tmp_path: Path) -> None:
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.summary.writer.event_file_writer import EventFileWriter

    theirs = EventFileWriter(str(tmp_path))
    value = Summary.Value(tag="loss", simple_value=2.0)
    theirs.add_event(Event(step=1, summary=Summary(value=[value])))
    manager = TimeManager({"load": [0.001]})
    with TensorBoardExporter(manager, tmp_path) as exporter:
        exporter.step(1)
    theirs.close()
    assert scalars_in(tmp_path) == {"loss": [(1, 2.0)], "time/load": [(1, 1.0)]}


@needs_tensorboard
def test_a_folder_that_cannot_be_written_at_first(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, at_steps_only: float
) -> None:
    forget("TensorBoardExporter")
    place = tmp_path / "run"
    place.write_text("a file where the folder should be")
    manager = TimeManager({"load": [0.001]})
    with TensorBoardExporter(manager, place, every_s=at_steps_only) as exporter:
        for failures in (1, 2):
            manager.add("load", 1_000_000)
            exporter.step(failures)
            wait_for(lambda: exporter.failed >= failures)  # noqa: B023
        place.unlink()
        manager.add("load", 4_000_000)
        exporter.step(7)
    assert scalars_in(place) == {"time/load": [(7, 4.0)]}
    assert caplog.text.count("TensorBoardExporter could not write stage times: ") == 1


@needs_tensorboard
def test_a_disk_that_is_full_for_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at_steps_only: float
) -> None:
    manager = TimeManager()
    exporter = TensorBoardExporter(manager, tmp_path, every_s=at_steps_only)
    new_file = exporter._new_file

    def full_disk() -> Any:
        return exporter._records.RecordWriter(open("/dev/full", "wb", buffering=0))

    monkeypatch.setattr(exporter, "_new_file", full_disk)
    manager.add("load", 1_000_000)
    exporter.step(1)
    wait_for(lambda: exporter.failed)
    monkeypatch.setattr(exporter, "_new_file", new_file)
    manager.add("load", 2_000_000)
    exporter.step(2)
    exporter.close()
    assert scalars_in(tmp_path) == {"time/load": [(2, 2.0)]}


@needs_tensorboard
def test_a_folder_a_rank_only_where_several_write(tmp_path: Path) -> None:
    manager = TimeManager()
    with TensorBoardExporter(manager, tmp_path, ranks=[0]) as exporter:
        assert exporter.log_dir == tmp_path
    with TensorBoardExporter(manager, tmp_path, ranks=iter([0, 1])) as exporter:
        assert exporter.log_dir == tmp_path / "rank_0"


@needs_tensorboard
def test_ranks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    manager = TimeManager({"load": [0.001]})
    before = set(threading.enumerate())
    with TensorBoardExporter(manager, tmp_path / "a", ranks=1) as exporter:
        assert set(threading.enumerate()) <= before
        exporter.step(1)
    assert not (tmp_path / "a").exists()
    with TensorBoardExporter(manager, tmp_path / "b", ranks=None) as exporter:
        exporter.step(1)
    assert scalars_in(tmp_path / "b" / exporter.log_dir.name) == {"time/load": [(1, 1.0)]}
    assert exporter.log_dir.name.startswith("rank_")


# --- what holds for all of them ---


def test_a_writer_that_hangs_does_not_hold_up_the_training(
    tmp_path: Path, at_steps_only: float
) -> None:
    manager = TimeManager({"load": [0.001]})
    exporter = PrometheusExporter(manager, tmp_path, every_s=at_steps_only)
    exporter._needs_all = True
    goes_on, hangs = threading.Event(), threading.Event()

    def write(snapshot: object) -> None:
        hangs.set()
        goes_on.wait()

    exporter._write = write  # type: ignore[method-assign]
    exporter.step(0)
    hangs.wait()
    for step in range(1, QUEUE_MAX + 11):
        exporter.step(step)
    assert exporter.dropped == 10
    goes_on.set()
    exporter.close()
    assert exporter.written == QUEUE_MAX + 1


@needs_tensorboard
def test_the_end_of_the_process_writes_what_is_left(run_python: RunPython, tmp_path: Path) -> None:
    program = """
import sys
from my_utils.record.exporters import PrometheusExporter, TensorBoardExporter
from my_utils.timing import TimeManager
manager = TimeManager({"load": [0.002]})
points = TensorBoardExporter(manager, sys.argv[1] + "/run")
points.step(3)
text = PrometheusExporter(manager, sys.argv[1] + "/prom")
"""
    done = run_python("-c", program, str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert scalars_in(tmp_path / "run") == {"time/load": [(3, 2.0)]}
    (file,) = (tmp_path / "prom").iterdir()
    assert metrics_in(file)["my_utils_stage_seconds_sum", "load"] == 0.002


@needs_tensorboard
def test_a_forked_child_writes_nothing(tmp_path: Path) -> None:
    manager = TimeManager({"load": [0.001]})
    exporter = TensorBoardExporter(manager, tmp_path)
    child = os.fork()
    if child == 0:
        exporter.step(100)
        exporter.close()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    exporter.step(1)
    exporter.close()
    assert scalars_in(tmp_path) == {"time/load": [(1, 1.0)]}


@pytest.mark.parametrize(
    ("make", "package"),
    [
        (TensorBoardExporter, "tensorboard"),
        (PrometheusExporter, "prometheus_client"),
        (lambda source, folder: WandbExporter(source), "wandb"),
    ],
    ids=["TensorBoard", "Prometheus", "W&B"],
)
def test_a_package_that_is_not_installed(
    make: Any, package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, package, None)
    with pytest.raises(ImportError, match=f"needs {package}.*pip install {package}"):
        make(TimeManager(), tmp_path)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"source": 3}, TypeError, "source must be a MyTimer or a TimeManager, not int"),
        ({"log_dir": None}, TypeError, "log_dir must be a path, not None"),
        ({"every_s": "1"}, TypeError, "every_s must be a number of seconds, not '1'"),
        ({"every_s": 0}, ValueError, "every_s must be finite and above 0, not 0"),
        ({"every_steps": 1.5}, TypeError, r"every_steps must be an int, not 1\.5"),
        ({"every_steps": 0}, ValueError, "every_steps must be at least 1, not 0"),
        ({"ranks": "0"}, TypeError, "ranks must be None, an int or a list of int"),
        ({"prefix": 3}, TypeError, "prefix must be a str, not 3"),
        ({"prefix": ""}, ValueError, "prefix must not be empty"),
    ],
)
def test_wrong_arguments(
    arguments: Any, error: type[Exception], message: str, tmp_path: Path
) -> None:
    with pytest.raises(error, match=message):
        TensorBoardExporter(**{"source": TimeManager(), "log_dir": tmp_path, **arguments})


@needs_tensorboard
def test_wrong_steps(tmp_path: Path) -> None:
    with TensorBoardExporter(TimeManager(), tmp_path) as exporter:
        with pytest.raises(TypeError, match=r"step must be an int, not 1\.5"):
            exporter.step(1.5)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="step must be at least 0, not -1"):
            exporter.step(-1)


# --- Prometheus ---


def test_the_text_file(tmp_path: Path) -> None:
    pytest.importorskip("prometheus_client", reason="prometheus_client is not installed")
    timer = MyTimer(tag="my exporter/prom")
    timer.set_step(12)
    for _ in range(100):
        with timer.time_stage("iter"), timer.time_stage('say "a\\b"\n'):
            pass
    with PrometheusExporter(timer, tmp_path / "collector") as exporter:
        pass
    assert exporter.path.parent == tmp_path / "collector"
    assert exporter.path.name.startswith("my_utils_my_exporter_prom_rank_")
    found = metrics_in(exporter.path)
    paths = {"/".join(row[0]): row for row in timer.aggregates()}
    assert set(paths) == {"iter", 'iter/say "a\\b"\n'}
    for path, (_, calls, ns, *_, p50, p90, p99) in paths.items():
        assert found["my_utils_stage_seconds_count", path] == calls
        assert found["my_utils_stage_seconds_sum", path] == pytest.approx(ns * 1e-9)
        for share, value in (("0.5", p50), ("0.9", p90), ("0.99", p99)):
            assert found["my_utils_stage_seconds", path, share] == pytest.approx(value * 1e-9)
    assert found["my_utils_step", ""] == 12
    assert 'timer="my exporter/prom"' in exporter.path.read_text()


def test_the_text_file_is_always_whole(tmp_path: Path) -> None:
    manager = TimeManager({f"stage {number}": [0.001] for number in range(200)})
    seen: set[float] = set()
    with PrometheusExporter(manager, tmp_path, every_s=0.001) as exporter:
        wait_for(exporter.path.exists)
        while len(seen) < 5:
            manager.add("stage 0", 1_000_000)
            found = metrics_in(exporter.path)
            assert len(found) == 401
            seen.add(found["my_utils_stage_seconds_count", "stage 0"])
    assert [file.suffix for file in tmp_path.iterdir()] == [".prom"]
    assert oct(exporter.path.stat().st_mode & 0o444) == oct(0o444)  # the collector is another user


# --- Weights & Biases ---

OFFLINE = """
import json, sys
from pathlib import Path
import wandb
import my_utils.record.exporters.exporter
from my_utils.record.exporters import WandbExporter
from my_utils.timing import TimeManager
my_utils.record.exporters.exporter.WAKE_S = 0.01
manager = TimeManager()
with WandbExporter(manager, project="stages") as exporter:
    for step in (3, 4):
        manager.add("load", step * 1_000_000)
        exporter.step(step)
assert wandb.run is None, "its own run is finished"

manager.clear()
manager.add("load", 1_000_000)  # before there was an exporter
run = wandb.init(project="theirs")
exporter = WandbExporter(manager, every_s=1000)
for step in (10, 20):
    manager.add("load", 7_000_000)
    exporter.step(step)
    while exporter.written < step // 10:
        pass
    run.log({"loss": 1.0}, step=step)
exporter.close()
run.finish()
assert exporter.failed == 0
"""

READ = """
import json, sys
from pathlib import Path
from wandb.proto.wandb_internal_pb2 import Record
from tests.support.wandb_files import records

files = Path(sys.argv[1]).glob("wandb/offline-run-*/*.wandb")
for file in sorted(files, key=lambda file: file.stat().st_mtime):
    rows = []
    for data in records(file.read_bytes()):
        record = Record()
        record.ParseFromString(data)
        if record.WhichOneof("record_type") == "history":
            rows.append({"/".join(item.nested_key) or item.key: json.loads(item.value_json)
                         for item in record.history.item})
    print(json.dumps(rows))
"""


@pytest.mark.timeout(320)
def test_offline_runs(run_python: RunPython, tmp_path: Path) -> None:
    pytest.importorskip("wandb", reason="wandb is not installed")
    settings = {"WANDB_MODE": "offline", "WANDB_DIR": str(tmp_path), "WANDB_SILENT": "true"}
    done = run_python("-c", OFFLINE, env=settings, timeout=200)
    assert done.returncode == 0, done.stderr
    done = run_python("-c", READ, str(tmp_path))
    assert done.returncode == 0, done.stderr
    own, theirs = (json.loads(line) for line in done.stdout.splitlines())
    assert [(row["time/step"], row["time/load"]) for row in own] == [(3, 3.0), (4, 4.0)]
    times = [(row["time/step"], row["time/load"]) for row in theirs if "time/load" in row]
    assert times == [(10, 4.0), (20, 7.0)]
    losses = [(row["_step"], row["loss"]) for row in theirs if "loss" in row]
    assert losses == [(10, 1.0), (20, 1.0)]
