"""The performance tracker: real processes, real files, and nvidia-ml-py on a stand-in for NVML."""

from __future__ import annotations

import csv
import json
import logging
import math
import os
import resource
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import psutil
import pytest
from hypothesis import example, given, settings, strategies as st

from my_utils import GlobalLogger, MyTimer
from my_utils.csv2trace import csv_to_trace
from my_utils.gpu_mem_tracker import GPU_Performance_Tracker
from my_utils.profilers.memory.tracker import record as tracker_record, sources
from my_utils.profilers.memory.tracker.plot import draw
from my_utils.profilers.memory.tracker.series import Series
from my_utils.profilers.memory.tracker.sources import (
    NAN,
    BusyShare,
    Figure,
    Host,
    Rate,
    Seldom,
    memory_of,
    torch_memory,
)

from ...clients.perfetto import TraceProcessor, why_missing
from ...conftest import RunPython
from ...fakes import compile_fake
from ...support.other_users import OTHER, done_by, folder_for_all
from ...support.profile_rows import Profile

pytestmark = [pytest.mark.long_file, pytest.mark.no_torch]

MIB = 1 << 20


def rows_of(path: Path | None) -> list[dict[str, str]]:
    assert path is not None
    with open(path, encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def png_size(path: Path | None) -> tuple[int, int]:
    """The size of a picture that is not blank."""
    from matplotlib.image import imread

    assert path is not None
    content = path.read_bytes()
    assert content.startswith(b"\x89PNG\r\n\x1a\n")
    assert len({tuple(pixel) for pixel in imread(path)[::7, ::7, :3].reshape(-1, 3)}) > 5
    width, height = struct.unpack(">II", content[16:24])
    return width, height


def tracker(folder: Path, interval: float = 0.01, **options: Any) -> GPU_Performance_Tracker:
    options = {"track_hardware_metrics": False, "plot": False, **options}
    return GPU_Performance_Tracker(folder / "run", interval, **options)


def tracker_threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if "tracker" in thread.name}


def sampled(run: GPU_Performance_Tracker) -> None:
    """Waits for a sample that is taken, from its first read to its end, during the call."""
    seen = run.samples
    until(lambda: run.samples >= seen + 2)


def until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.005)


# --- a run ---


def test_a_run_with_its_files(tmp_path: Path, profile: Profile) -> None:
    timer = MyTimer(tag="tracked")
    run = GPU_Performance_Tracker(
        prefix=str(tmp_path / "deep" / "run"), interval=0.01, track_hardware_metrics=False
    )
    run.start_monitoring()
    started = run.is_monitoring
    for step in range(3):
        timer.set_step(step)
        with timer.time_stage("iter"), timer.time_stage('forward, "odd"'):
            ballast = bytearray(100 * MIB) if step == 1 else bytearray()
            sampled(run)
            del ballast
            sampled(run)
    peaks = run.stop_monitoring()
    assert started and not run.is_monitoring

    base = tmp_path / "deep" / "run_rank0_performance_profile"
    assert run.csv_path == base.with_suffix(".csv") and run.plot_path == base.with_suffix(".png")
    assert sorted(os.listdir(base.parent)) == [base.name + ".csv", base.name + ".png"]
    assert min(png_size(run.plot_path)) > 300

    rows = rows_of(run.csv_path)
    assert len(rows) == run.samples >= 10
    times = [float(row["timestamp_unix"]) for row in rows]
    assert times == sorted(times) and abs(times[-1] - time.time()) < 60
    assert {row["step"] for row in rows} >= {"0", "1", "2"}
    peak = peaks["process_rss_bytes"]
    highest = max(rows, key=lambda row: int(row["process_rss_bytes"]))
    assert peak.value == int(highest["process_rss_bytes"]) and peak.unit == "bytes"
    assert peak.timestamp == pytest.approx(float(highest["timestamp_unix"]))
    assert (peak.step, peak.stage) == (1, 'iter/forward, "odd"')
    assert highest["stage"] == peak.stage
    least = min(int(row["process_rss_bytes"]) for row in rows)
    assert peak.value - least > 90 * MIB
    assert "process_rss_bytes" in run.report() and "samples" in run.report()


def test_the_report_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="my_utils"), tracker(tmp_path) as run:
        pass
    assert run.report().splitlines()[1] in caplog.text
    assert run.plot_path is None and os.listdir(tmp_path) == [run.csv_path.name]  # type: ignore[union-attr]


def test_the_curves_in_the_trace(tmp_path: Path, profile: Profile) -> None:
    if why_missing() is not None:
        pytest.skip(str(why_missing()))
    timer = MyTimer(tag="tracked")
    with tracker(tmp_path, 0.02) as run:
        for step in range(3):
            timer.set_step(step)
            with timer.time_stage("iter"):
                sampled(run)
            timer.step()
    GlobalLogger().flush()
    trace = tmp_path / "trace.pftrace"
    csv_to_trace(tmp_path / "logs", trace)
    with TraceProcessor(trace) as perfetto:
        assert perfetto.complaints() == {}
        points = perfetto.query(
            "select ts, value from counter join counter_track on track_id = counter_track.id "
            "where name = 'process.rss_bytes' order by ts"
        )
        names = perfetto.query("select distinct name from counter_track")
        slices = perfetto.query("select min(ts) as b, max(ts + dur) as e from slice")[0]
    rows = rows_of(run.csv_path)
    assert [point["value"] for point in points] == [int(row["process_rss_bytes"]) for row in rows]
    inside = [
        point["ts"]
        for point, row in zip(points, rows, strict=True)
        if (row["step"], row["stage"]) == ("1", "iter")
    ]
    assert inside and all(slices["b"] <= ts <= slices["e"] for ts in inside)
    assert {"process.rss_bytes", "process.cpu_percent"} <= {row["name"] for row in names}


def test_no_counters_where_none_are_wanted(tmp_path: Path, profile: Profile) -> None:
    with tracker(tmp_path, counters=False):
        time.sleep(0.03)
    GlobalLogger().flush()
    assert not [row for row in profile.rows() if row.kind == "COUNTER"]


def test_the_report_is_seen_where_no_log_is_set_up(run_python: RunPython, tmp_path: Path) -> None:
    """As the usage that is known from before."""
    done = run_python("-c", f"""if True:
        from my_utils.gpu_mem_tracker import GPU_Performance_Tracker

        tracker = GPU_Performance_Tracker(prefix={str(tmp_path / "run")!r}, interval=1)
        tracker.start_monitoring()
        tracker.stop_monitoring()
    """)  # fmt: skip
    assert done.returncode == 0 and done.stdout == "", done.stderr
    assert "process_rss_bytes" in done.stderr and "peak" in done.stderr, done.stderr


def test_started_and_stopped_out_of_turn(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    run = tracker(tmp_path)
    assert run.stop_monitoring() == {} == run.peaks()
    assert run.csv_path is None and run.samples == 0 and run.report() == "no samples"
    run.start_monitoring()
    threads = tracker_threads()
    run.start_monitoring()
    assert "runs already" in caplog.text and tracker_threads() == threads
    first = run.stop_monitoring()
    assert run.stop_monitoring() == first
    before = run.samples
    with run:  # goes on
        time.sleep(0.03)
    rows = rows_of(run.csv_path)
    assert len(rows) == run.samples > before
    assert run.peaks()["process_rss_bytes"].value == max(int(r["process_rss_bytes"]) for r in rows)


def test_a_block_that_raises(tmp_path: Path) -> None:
    run = tracker(tmp_path, plot=True)
    with pytest.raises(ZeroDivisionError), run:
        _ = 1 / 0
    assert not run.is_monitoring
    assert len(rows_of(run.csv_path)) >= 1 and png_size(run.plot_path)


def test_other_ranks_do_nothing(tmp_path: Path) -> None:
    with tracker(tmp_path, ranks=[3]) as run:
        assert not run.is_monitoring
    assert os.listdir(tmp_path) == [] and run.peaks() == {}


def test_long_interval_and_short_run(tmp_path: Path) -> None:
    """The first and the last sample are taken whatever the interval is, and stop does not wait."""
    with tracker(tmp_path, 3600) as run:
        until(lambda: run.samples == 1)
    assert run.samples == 2


def test_a_stop_waits_on_for_a_thread_that_was_stopped_with_the_whole_process(
    run_python: RunPython, tmp_path: Path
) -> None:
    done = run_python("-c", """if True:
        import subprocess, sys, time
        sys.modules["torch"] = None
        from my_utils.profilers.memory.tracker import run as sampling
        from my_utils.gpu_mem_tracker import GPU_Performance_Tracker
        run = GPU_Performance_Tracker("run", 3600, False, plot=False)
        run.start_monitoring()
        while run.samples < 1:
            time.sleep(0.01)
        def read():
            last = now = time.monotonic()
            while now < last + 1:  # until it was stopped
                last, now = now, time.monotonic()
                time.sleep(0.001)
            return (1.0,)
        slot, probe = run._run._reader._probes[0]
        run._run._reader._probes[0] = slot, probe._replace(read=read)
        sampling._JOIN_S = 1.5
        stopper = subprocess.Popen(["sh", "-c", "sleep 0.1; kill -STOP $PPID; sleep 2; "
                                                "kill -CONT $PPID"])
        run.stop_monitoring()
        stopper.wait()
        print(run.samples)
    """)  # fmt: skip
    assert (done.returncode, done.stdout.split()) == (0, ["2"]), done.stderr
    assert "hangs" not in done.stderr


@pytest.mark.parametrize(
    ("arguments", "error", "named"),
    [
        ({"prefix": 3}, TypeError, "prefix"),
        ({"prefix": b"run"}, TypeError, "prefix"),
        ({"prefix": "folder/"}, ValueError, "prefix"),
        ({"interval": "1"}, TypeError, "interval"),
        ({"interval": True}, TypeError, "interval"),
        ({"interval": 0}, ValueError, "interval"),
        ({"interval": math.nan}, ValueError, "interval"),
        ({"interval": math.inf}, ValueError, "interval"),
        ({"track_hardware_metrics": 1}, TypeError, "track_hardware_metrics"),
        ({"devices": -1}, ValueError, "devices"),
        ({"devices": "0"}, TypeError, "devices"),
        ({"ranks": 0.5}, TypeError, "ranks"),
        ({"plot": None}, TypeError, "plot"),
        ({"counters": None}, TypeError, "counters"),
    ],
)
def test_wrong_arguments(arguments: dict[str, Any], error: type[Exception], named: str) -> None:
    with pytest.raises(error, match=named):
        GPU_Performance_Tracker(**arguments)


def test_a_missing_matplotlib_is_told_before_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    run = tracker(tmp_path, plot=True)
    with pytest.raises(ImportError, match="pip install matplotlib"):
        run.start_monitoring()
    assert not run.is_monitoring and os.listdir(tmp_path) == []
    with tracker(tmp_path):
        pass


# --- files and processes ---


def test_a_file_of_an_earlier_run_goes_on_or_is_set_aside(tmp_path: Path) -> None:
    path = tmp_path / "run_rank0_performance_profile.csv"
    with tracker(tmp_path):
        pass
    with open(path, "a", encoding="utf-8") as file:
        file.write("1795262538.5,3,cut")  # killed in the middle of a row
    with tracker(tmp_path) as second:
        pass
    lines = path.read_text(encoding="utf-8").splitlines()
    assert sum(line.startswith("timestamp_unix") for line in lines) == 1
    assert lines.count("1795262538.5,3,cut") == 1 and len(lines) > 2 + second.samples

    path.write_text("something else\n", encoding="utf-8")
    with tracker(tmp_path):
        pass
    assert (tmp_path / "run_rank0_performance_profile.old1.csv").read_text() == "something else\n"
    assert rows_of(path)


def test_two_trackers_of_a_name_have_files_of_their_own(
    run_python: RunPython, tmp_path: Path
) -> None:
    done = run_python("-c", """if True:
        import os, sys, time
        sys.modules["torch"] = None
        from my_utils.gpu_mem_tracker import GPU_Performance_Tracker
        def tracker():
            return GPU_Performance_Tracker("run", 0.005, False)
        def wait_for_samples(*runs):
            while any(run.samples <= 2 for run in runs):
                time.sleep(0.01)
        first, second = tracker(), tracker()
        with first, second:
            wait_for_samples(first, second)
            if os.fork() == 0:
                with tracker() as third:
                    wait_for_samples(third)
                print(third.csv_path.name, third.plot_path.name, flush=True)
                os._exit(0)
            assert os.wait()[1] == 0
        with second:
            pass
        print(first.csv_path.name, second.csv_path.name)
    """)  # fmt: skip
    base = "run_rank0_performance_profile"
    assert done.stdout.split() == [
        f"{base}.3.csv", f"{base}.3.png", f"{base}.csv", f"{base}.2.csv"
    ], done.stderr  # fmt: skip
    assert sorted(os.listdir(tmp_path)) == sorted(
        f"{base}{number}.{kind}" for number in ("", ".2", ".3") for kind in ("csv", "png")
    )
    for number in ("", ".2", ".3"):
        times = [row["timestamp_unix"] for row in rows_of(tmp_path / f"{base}{number}.csv")]
        assert times == sorted(set(times)) and len(times) > 2


def test_files_that_cannot_be_written(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("")
    run = GPU_Performance_Tracker(tmp_path / "file" / "run", 0.01, track_hardware_metrics=False)
    with run:
        pass
    assert "cannot write" in caplog.text and "could not be drawn" in caplog.text
    assert run.peaks()["process_rss_bytes"].value > MIB


def test_a_file_that_may_not_grow(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = tracker_record.SampleFile(tmp_path / "full.csv", ["a", "b"])
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, before[1]))
    try:
        for _ in range(3):
            file.add("x" * (tracker_record.PENDING_BYTES // 2) + "\n")
            file.flush()
        file.close()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert caplog.text.count("File too large") == 1
    assert file.lost == 1


PLANTED: dict[str, Callable[[Path, Path], object]] = {
    "symbolic link": lambda path, victim: path.symlink_to(victim),
    "hard link": lambda path, victim: path.hardlink_to(victim),
    "no regular file": lambda path, _: os.mkfifo(path),
    "of another user": lambda path, _: done_by(OTHER, path.touch),
}


@pytest.mark.parametrize("kind", PLANTED)
def test_samples_go_to_no_file_of_others(caplog: pytest.LogCaptureFixture, kind: str) -> None:
    """A FIFO that nobody reads would hold the sampling thread up once it is full."""
    if kind == "of another user" and os.geteuid() != 0:
        pytest.skip("only root can be other users as well")
    with folder_for_all() as folder:
        (victim := folder / "victim").write_text("dear")
        path = folder / "run_rank0_performance_profile.csv"
        PLANTED[kind](path, victim)
        with tracker(folder) as run:
            pass
        assert run.csv_path == path.with_name("run_rank0_performance_profile.2.csv")
        assert rows_of(run.csv_path)
        assert victim.read_text() == "dear"
        assert path.stat(follow_symlinks=False).st_size in (0, len("dear"), len(str(victim)))
    assert caplog.text.count(kind) == 1


def test_killed_in_the_middle(run_python: RunPython, tmp_path: Path) -> None:
    done = run_python("-c", """if True:
        import os, signal, sys, time
        sys.modules["torch"] = None
        from my_utils.gpu_mem_tracker import GPU_Performance_Tracker
        run = GPU_Performance_Tracker("run", 0.01, track_hardware_metrics=False)
        run.start_monitoring()
        while run.csv_path.read_bytes().count(b"\\n") <= 50:
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGKILL)
    """)  # fmt: skip
    assert done.returncode == -9, done.stderr
    file = tmp_path / "run_rank0_performance_profile.csv"
    file.write_text(file.read_text()[: file.read_text().rindex("\n") + 1])  # less a cut row
    rows = rows_of(file)
    assert len(rows) >= 50 and all(None not in row.values() for row in rows)


def test_the_end_of_the_process_and_forked_children(run_python: RunPython, tmp_path: Path) -> None:
    done = run_python("-W", "error::ResourceWarning", "-c", """if True:
        import os, sys, time
        sys.modules["torch"] = None
        from my_utils.gpu_mem_tracker import GPU_Performance_Tracker
        def begin():
            run = GPU_Performance_Tracker("run", 0.005, track_hardware_metrics=False)
            run.start_monitoring()
            return run
        def wait_for_samples(run, more_than):
            while run.samples <= more_than:
                time.sleep(0.01)
        run = begin()
        wait_for_samples(run, 10)
        if os.fork() == 0:
            assert not run.is_monitoring
            run.stop_monitoring()
            own = GPU_Performance_Tracker("child", 0.005, False, plot=False)
            with own:
                wait_for_samples(own, 3)
            sys.exit(0)
        print(os.wait()[1])
        del run
    """)  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "0\n"), done.stderr
    assert sorted(os.listdir(tmp_path)) == [
        f"{name}_rank0_performance_profile.{kind}"
        for name, kind in (("child", "csv"), ("run", "csv"), ("run", "png"))
    ]  # fmt: skip
    times = [
        row["timestamp_unix"] for row in rows_of(tmp_path / "run_rank0_performance_profile.csv")
    ]
    assert times == sorted(set(times)) and len(times) > 10
    png_size(tmp_path / "run_rank0_performance_profile.png")


@pytest.mark.slow
def test_children_of_multiprocessing(run_python: RunPython, tmp_path: Path) -> None:
    done = run_python("-c", """if True:
        import multiprocessing, sys, time
        sys.modules["torch"] = None
        from my_utils.gpu_mem_tracker import GPU_Performance_Tracker
        def begin(name):
            run = GPU_Performance_Tracker(name, 0.01, False)
            run.start_monitoring()
            while run.samples <= 2:
                time.sleep(0.01)
        begin("parent")
        child = multiprocessing.get_context("fork").Process(target=begin, args=("child",))
        child.start()
        child.join()
        print(child.exitcode)
    """)  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "0\n"), done.stderr
    for name in ("child", "parent"):
        assert len(rows_of(tmp_path / f"{name}_rank0_performance_profile.csv")) > 2
        png_size(tmp_path / f"{name}_rank0_performance_profile.png")


# --- sources ---


def cpu_clocks() -> np.ndarray[Any, np.dtype[np.float64]]:
    """Seconds of processor time of this process, and of time."""
    times = psutil.Process().cpu_times()
    return np.array([times.user + times.system, time.perf_counter()])


def test_the_host_s_figures_are_psutil_s() -> None:
    probes = {probe.figures[0].name: probe.read for probe in Host().probes()}
    (rss,) = probes["process_rss_bytes"]()
    assert rss == pytest.approx(psutil.Process().memory_info().rss, rel=0.05)
    # The process may be kept waiting between any two lines: what was used lies between these.
    outer = cpu_clocks()
    probes["process_cpu_percent"]()
    inner = cpu_clocks()
    while time.perf_counter() < inner[1] + 0.3:
        pass
    inner = cpu_clocks() - inner
    (percent,) = probes["process_cpu_percent"]()
    outer = cpu_clocks() - outer
    tick_s = 0.03  # of the kernel's hundredths
    assert percent >= 100 * (inner[0] - tick_s) / outer[1]
    assert percent <= 100 * (outer[0] + tick_s) / inner[1]
    assert math.isnan(probes["host_cpu_percent"]()[0])


def test_the_host_s_share_of_busy_time() -> None:
    busy = BusyShare()
    before = psutil.cpu_times()
    assert math.isnan(busy.of(sum(before), before.idle))
    assert busy.of(sum(before) + 100, before.idle + 25) == pytest.approx(75)
    assert math.isnan(busy.of(sum(before) + 100, before.idle + 25))


def io_clocks() -> np.ndarray[Any, np.dtype[np.float64]]:
    """Bytes that this process wrote, and seconds."""
    return np.array([psutil.Process().io_counters().write_bytes, time.perf_counter()])


def test_what_is_written_to_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Seldom, "EVERY_S", 0.0)
    monkeypatch.setattr(Seldom, "SHARE", math.inf)
    read = {probe.figures[0].name: probe.read for probe in Host().probes()}[
        "process_read_bytes_per_s"
    ]
    outer = io_clocks()
    assert all(map(math.isnan, read()))
    inner = io_clocks()
    with open(tmp_path / "data", "wb") as file:
        file.write(os.urandom(4 * MIB))
        os.fsync(file.fileno())
    time.sleep(0.01)
    inner = io_clocks() - inner
    _, written = read()
    outer = io_clocks() - outer
    assert inner[0] / outer[1] <= written <= outer[0] / inner[1]


def test_rates_of_a_moment_are_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([1.0, 1.001, 2.0, 3.0])
    clock = SimpleNamespace(perf_counter=lambda: next(times))  # not that of all threads
    monkeypatch.setattr(sources, "time", clock)
    rate = Rate(100.0)
    found = [rate.of(value) for value in (5.0, 6.0, 7.0, 0.0)]
    assert found == [pytest.approx(x, nan_ok=True) for x in (NAN, NAN, 200.0, 0.0)]


def test_torch_s_memory_without_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which functions of torch are asked; what they say only a GPU tells."""
    torch = pytest.importorskip("torch", reason="torch is not installed")
    stats = {"allocated_bytes": {"all": {"current": 3, "peak": 9}},
             "reserved_bytes": {"all": {"current": 20}}}  # fmt: skip
    asked: list[int] = []

    def nested(device: int) -> dict[str, Any]:
        asked.append(device)
        return stats if device else {}

    monkeypatch.setattr(torch.cuda, "memory_stats_as_nested_dict", nested)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    assert all(map(math.isnan, torch_memory(1))) and asked == []
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    assert (torch_memory(1), torch_memory(0)) == ((3, 20, 9), (0, 0, 0))
    assert asked == [1, 0]


# --- psutil ---


def test_the_memory_of_children_and_of_the_machine(run_python: RunPython, tmp_path: Path) -> None:
    """A child that holds 60 MiB has one that holds 30 MiB; a third has ended, and nobody waited."""
    done = run_python("-c", """if True:
        import json, os, subprocess, sys, time
        sys.modules["torch"] = None
        from my_utils.gpu_mem_tracker import GPU_Performance_Tracker
        hold = "ballast = bytearray(b'x') * (%d << 20); print(flush=True); input()"
        nested = (
            "import subprocess, sys; subprocess.Popen([sys.executable, '-c', sys.argv[1]]); "
            + hold % 60
        )
        child = subprocess.Popen([sys.executable, "-c", nested, hold % 30],
                                 stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        ended = subprocess.Popen(["true"])
        os.waitid(os.P_PID, ended.pid, os.WEXITED | os.WNOWAIT)
        for _ in range(2):
            assert child.stdout.readline()
        with GPU_Performance_Tracker("run", 0.02, False) as run:
            while run.samples < 5:
                time.sleep(0.01)
        child.stdin.close()
        child.stdout.read()
        assert (child.wait(), ended.wait()) == (1, 0)
        print(json.dumps({name: (peak.value, peak.unit) for name, peak in run.peaks().items()}))
    """)  # fmt: skip
    assert done.returncode == 0, done.stderr
    peaks = json.loads(done.stdout)
    assert peaks["children_count"] == [2, "processes"]
    rss, unit = peaks["children_rss_bytes"]
    assert unit == "bytes" and 90 * MIB < rss < 90 * MIB + 2 * 40 * MIB
    available, unit = peaks["host_available_bytes"]
    assert unit == "bytes" and 0 < available <= psutil.virtual_memory().total
    rows = rows_of(tmp_path / "run_rank0_performance_profile.csv")
    assert 90 * MIB < int(rows[0]["children_rss_bytes"]) <= rss
    assert rows[0]["children_count"] == "2"
    assert "" in {row["children_count"] for row in rows}  # read once a second at most
    assert min(png_size(tmp_path / "run_rank0_performance_profile.png")) > 300


def test_children_that_end_while_they_are_looked_at() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        process = psutil.Process(child.pid)
        own = psutil.Process()
        rss, count = memory_of([process, own])
        assert rss > own.memory_info().rss * 0.5 and count == 2
        child.kill()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert memory_of([process]) == (0, 0)
        child.wait()
        assert memory_of([process]) == (0, 0)
        assert memory_of([process, own])[1] == 1


def test_seldom_takes_its_share_of_a_core_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    spent: list[float] = []

    def read() -> tuple[float]:
        began = time.thread_time()
        while time.thread_time() < began + 0.004:
            pass
        spent.append(time.thread_time() - began)
        return (len(spent),)

    monkeypatch.setattr(Seldom, "EVERY_S", 0.0)
    monkeypatch.setattr(Seldom, "SHARE", 0.1)
    seldom = Seldom(read, 1)
    began = time.monotonic()
    seen: list[float] = []
    while len(spent) < 5:
        seen += (value for value in seldom.read() if value == value)
    assert seen == [1, 2, 3, 4, 5]
    assert sum(spent[:-1]) <= 0.1 * (time.monotonic() - began)


def test_seldom_reads_nothing_before_it_is_due(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Seldom.EVERY_S == 1.0
    monkeypatch.setattr(Seldom, "EVERY_S", 3600.0)
    reads: list[None] = []
    seldom = Seldom(lambda: (reads.append(None) or 1.0, 2.0), 2)  # type: ignore[func-returns-value]
    assert tuple(seldom.read()) == (1.0, 2.0)
    assert all(map(math.isnan, seldom.read())) and len(seldom.read()) == 2
    assert len(reads) == 1


def test_without_psutil_there_are_no_columns_of_it(run_python: RunPython, tmp_path: Path) -> None:
    done = run_python("-c", """if True:
        import sys
        sys.modules["psutil"] = sys.modules["torch"] = None
        from my_utils.gpu_mem_tracker import GPU_Performance_Tracker
        with GPU_Performance_Tracker("run", 0.01, False, plot=False):
            pass
    """)  # fmt: skip
    assert (done.returncode, done.stderr.count("WARNING")) == (0, 0), done.stderr
    columns = rows_of(tmp_path / "run_rank0_performance_profile.csv")[0].keys()
    assert "host_cpu_percent" in columns
    assert not {"children_rss_bytes", "children_count", "host_available_bytes"} & columns


def test_where_the_plot_has_the_figures_of_psutil() -> None:
    from matplotlib.figure import Figure as Picture

    from my_utils.gpu_mem_tracker import Peak

    figures = [
        Figure("process", "rss_bytes", "bytes"),
        Figure("children", "rss_bytes", "bytes"),
        Figure("children", "count", "processes"),
        Figure("host", "available_bytes", "bytes"),
    ]
    series = Series([figure.name for figure in figures])
    series.add(0.0, [1.0, 2.0, 3.0, 4.0])
    peaks = {figure.name: Peak(1.0, "bytes", 0.0, None, "") for figure in figures}
    picture = Picture()
    draw(picture, figures, series, peaks, "")
    shown = {axis.get_ylabel(): axis.get_legend_handles_labels()[1] for axis in picture.axes}
    assert shown == {
        "RSS, GiB": ["process rss", "children rss"],
        "host memory, GiB": ["available"],
    }


# --- NVML ---


@pytest.fixture(scope="session")
def fake_nvml(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("pynvml", reason="nvidia-ml-py is not installed")
    return compile_fake("fake_nvml.c", tmp_path_factory.mktemp("nvml") / "libnvidia-ml.so.1").parent


THREE_SAMPLES = """
            while run.samples < 3:
                time.sleep(0.01)
"""


@pytest.fixture
def with_nvml(
    fake_nvml: Path, run_python: RunPython, tmp_path: Path
) -> Callable[..., tuple[dict[str, Any], str]]:
    """The peaks of a run with the stand-in, and what the process logged."""

    def run(body: str = THREE_SAMPLES, options: str = "", **env: str) -> tuple[Any, str]:
        done = run_python("-c", f"""if True:
            import json, os, sys, time
            sys.modules["torch"] = None  # NVML needs none
            from my_utils.gpu_mem_tracker import GPU_Performance_Tracker
            run = GPU_Performance_Tracker("run", 0.01, plot=False, {options})
            run.start_monitoring()
            {body}
            began = time.monotonic()
            peaks = run.stop_monitoring()
            print(json.dumps(dict(peaks, took=time.monotonic() - began)))
        """, env={"LD_LIBRARY_PATH": str(fake_nvml), **env})  # fmt: skip
        assert done.returncode == 0, done.stderr
        found = json.loads(done.stdout.splitlines()[-1])
        took = found.pop("took")
        return {key: peak[0] for key, peak in found.items()} | {"took": took}, done.stderr

    return run


def expected_of(device: int) -> dict[str, float]:
    return {
        f"gpu{device}_{key}": value
        for key, value in {
            "utilization_percent": 40 + device,
            "memory_utilization_percent": 20 + device,
            "memory_used_bytes": (1 + device) << 30,
            "power_w": 100.5 + device,
            "temperature_c": 50 + device,
            "sm_clock_mhz": 1500 + device,
            "memory_clock_mhz": 2600 + device,
            "pcie_rx_bytes_per_s": (1 + device) * 1000 * 1024,
            "pcie_tx_bytes_per_s": (1 + device) * 2000 * 1024,
        }.items()
    }


NvmlRun = Callable[..., tuple[dict[str, Any], str]]


def of_gpus(peaks: dict[str, Any]) -> dict[str, float]:
    return {key: value for key, value in peaks.items() if key.startswith("gpu")}


def test_every_figure_of_every_gpu(with_nvml: NvmlRun, tmp_path: Path) -> None:
    log = tmp_path / "calls"
    body = """
            while sum("pcie" in name for name in run.peaks()) < 4:
                time.sleep(0.01)
    """
    began = time.monotonic()
    peaks, warnings = with_nvml(body, FAKE_NVML_LOG=str(log))
    took = time.monotonic() - began
    assert of_gpus(peaks) == expected_of(0) | expected_of(1)
    assert warnings.count("WARNING") == 0
    rows = rows_of(tmp_path / "run_rank0_performance_profile.csv")
    assert {row["gpu1_power_w"] for row in rows} == {"101.50"}
    calls = log.read_text().split()
    assert calls[0] == "nvmlInit" and calls[-1] == "nvmlShutdown"
    assert 4 <= calls.count("nvmlDeviceGetPcieThroughput") <= 1 + took / 0.25
    assert calls.count("nvmlDeviceGetPowerUsage") == 2 * len(rows)


@pytest.mark.parametrize(
    ("visible", "found"),
    [("1", {0: 1}), ("1,0", {0: 1, 1: 0}), ("", {}), ("0,7,1", {0: 0}), ("GPU-00000001", {0: 1}),
     ("MIG-1", {0: 1})],
)  # fmt: skip
def test_visible_devices(visible: str, found: dict[int, int], with_nvml: NvmlRun) -> None:
    """GPUs have the numbers that torch gives them."""
    peaks, _ = with_nvml(CUDA_VISIBLE_DEVICES=visible)
    powers = {key: value for key, value in peaks.items() if key.endswith("_power_w")}
    assert powers == {f"gpu{own}_power_w": 100.5 + real for own, real in found.items()}


def test_chosen_devices(with_nvml: NvmlRun) -> None:
    peaks, warnings = with_nvml(options="devices=[1, 5]")
    assert {key.split("_")[0] for key in of_gpus(peaks)} == {"gpu1"}
    assert "leaves out GPU 5: 2 GPUs are visible" in warnings


def test_figures_that_fail_are_left_out_with_one_warning(
    with_nvml: NvmlRun, tmp_path: Path
) -> None:
    peaks, warnings = with_nvml(
        FAKE_NVML_FAIL="nvmlDeviceGetPowerUsage:3:999,nvmlDeviceGetTemperature:0:3"
    )
    assert peaks["gpu0_power_w"] == 100.5  # from the samples before
    assert "gpu0_temperature_c" not in peaks and "gpu1_temperature_c" not in peaks
    assert peaks["gpu1_memory_used_bytes"] == 2 << 30
    assert warnings.count("goes on without") == 2
    assert "goes on without gpu0_temperature_c, gpu1_temperature_c (Not Supported)" in warnings
    rows = rows_of(tmp_path / "run_rank0_performance_profile.csv")
    assert rows[0]["gpu0_power_w"] == "100.50" and rows[-1]["gpu0_power_w"] == ""


def test_pcie_of_one_gpu_fails(with_nvml: NvmlRun) -> None:
    peaks, _ = with_nvml("time.sleep(1.2)", FAKE_NVML_FAIL="nvmlDeviceGetPcieThroughput:2:3")
    assert [key for key in of_gpus(peaks) if "pcie" in key] == ["gpu0_pcie_rx_bytes_per_s"]
    assert peaks["process_rss_bytes"] > MIB


@pytest.mark.parametrize("plan", ["nvmlInit:0:9", "nvmlDeviceGetCount:0:999"])
def test_nvml_without_a_driver(plan: str, with_nvml: NvmlRun) -> None:
    peaks, warnings = with_nvml(FAKE_NVML_FAIL=plan)
    assert of_gpus(peaks) == {} and peaks["process_rss_bytes"] > MIB
    assert warnings.count("NVML is not at hand") == 1


def test_a_gpu_that_nvml_does_not_know(with_nvml: NvmlRun) -> None:
    peaks, warnings = with_nvml(CUDA_VISIBLE_DEVICES="GPU-77,0")
    assert {key.split("_")[0] for key in of_gpus(peaks)} == {"gpu1"}
    assert "no hardware figures of GPU 0: Not Found" in warnings


def test_a_driver_that_hangs(with_nvml: NvmlRun, tmp_path: Path) -> None:
    """Neither the stop nor the end of the process waits for it."""
    peaks, warnings = with_nvml("time.sleep(0.3)", FAKE_NVML_HANG="nvmlDeviceGetPcieThroughput")
    assert peaks["took"] < 30
    assert "which hangs" in warnings


def test_without_the_package(run_python: RunPython, tmp_path: Path) -> None:
    done = run_python("-c", """if True:
        import sys
        sys.modules["pynvml"] = sys.modules["torch"] = None
        from my_utils.gpu_mem_tracker import GPU_Performance_Tracker
        for _ in range(2):
            with GPU_Performance_Tracker("run", 0.01, plot=False):
                pass
    """)  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("pip install nvidia-ml-py") == 1
    assert rows_of(tmp_path / "run_rank0_performance_profile.csv")


@pytest.mark.gpu
def test_on_a_gpu(tmp_path: Path) -> None:
    import torch

    timer = MyTimer(tag="gpu")
    torch.zeros(1, device="cuda")
    device = torch.cuda.current_device()
    with GPU_Performance_Tracker(tmp_path / "run", 0.01, devices=device) as run:
        time.sleep(0.05)
        with timer.time_stage("forward"):
            tensor = torch.zeros(64 * MIB, dtype=torch.uint8, device="cuda")
            sampled(run)
        del tensor
        time.sleep(0.6)
    peaks = run.peaks()
    allocated = peaks[f"gpu{device}_allocated_bytes"]
    assert allocated.value >= 64 * MIB and allocated.stage == "forward"
    assert peaks[f"gpu{device}_reserved_bytes"].value >= allocated.value
    assert peaks[f"gpu{device}_allocated_peak_bytes"].value >= allocated.value
    assert peaks[f"gpu{device}_memory_used_bytes"].value >= allocated.value
    assert 1 < peaks[f"gpu{device}_power_w"].value < 2000
    assert png_size(run.plot_path)


# --- down-sampling ---

numbers = st.floats(-1e300, 1e300, width=64) | st.just(NAN)


@settings(deadline=None)
@example([(NAN, 5e-324), (NAN, 5e-324)], 2)  # the least of all numbers: a half of it is none
@given(
    st.lists(st.tuples(numbers, numbers), max_size=300),
    st.sampled_from([2, 4, 6, 16]),
)
def test_extremes_are_never_lost(samples: list[tuple[float, float]], capacity: int) -> None:
    series = Series(["a", "b"], capacity)
    for second, sample in enumerate(samples):
        series.add(float(second), sample)
        assert len(series) <= capacity
    for column, name in enumerate(("a", "b")):
        values = [sample[column] for sample in samples if not math.isnan(sample[column])]
        curve = series.curve(name)
        assert sum(curve.counts) == len(values)
        if values:
            assert (curve.low, curve.high) == (min(values), max(values))
            bound = max(map(abs, values))
            exact = float(sum(map(Fraction, values)) / len(values))
            assert curve.mean == pytest.approx(exact, rel=1e-9, abs=bound * 1e-9)
        else:
            assert all(map(math.isnan, (curve.low, curve.high, curve.mean)))
    if samples:
        assert (series.begins[0], series.ends[-1]) == (0.0, len(samples) - 1)
        assert list(series.begins[1:]) == list(series.ends[:-1] + 1)


@pytest.mark.parametrize("capacity", [0, 1, 7])
def test_an_odd_capacity(capacity: int) -> None:
    with pytest.raises(ValueError, match="capacity"):
        Series(["a"], capacity)


def test_a_week_at_ten_hertz_stays_small() -> None:
    series = Series(["a"], 64)
    for index in range(200_000):
        series.add(index / 10, [float(index)])
    assert len(series) <= 64 and series.stride == 4096
    assert len(series.curve("a").highs) == len(series)
