"""ProfilerWrapper: each file of a series, its figures, and whatever may go wrong round a block."""

from __future__ import annotations

import gc
import json
import logging
import os
import pickle
import re
import weakref
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st

pytest.importorskip("torch", reason="torch is not installed")
import torch
from torch.cuda import _memory_viz as viewer

from my_utils.core import warnings as _warnings
from my_utils.csv2trace import csv_to_trace
from my_utils.profilers.torch_profiler import slot as _slot
from my_utils.profilers.torch_profiler.entry_figures import CURVE_MAX, MemoryCurve
from my_utils.profilers.torch_profiler.series import Point, Series, Spread, memory_title, time_title
from my_utils.profilerwrapper import ProfilerWrapper
from my_utils.utils import MyTimer

from ...conftest import RunPython
from ...support.no_gil import frees_at_once
from ...support.profile_rows import Profile

image_of = pytest.importorskip("matplotlib.image", reason="matplotlib is not installed")


@pytest.fixture(autouse=True)
def fresh_warnings() -> None:
    for kind in list(_warnings.counts()):
        if "ProfilerWrapper" in kind:
            _warnings.forget(kind)


@pytest.fixture
def no_collector() -> Iterator[None]:
    """What is freed is freed without the garbage collector."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def work(size: int = 32, times: int = 5) -> torch.Tensor:
    x = torch.ones(size, size)
    for _ in range(times):
        x = torch.relu(x @ x)
    return x


def events_of(trace: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(trace.read_text())["traceEvents"]
    return found


def covered_us(events: list[dict[str, Any]]) -> float:
    """Time in which an operator runs, from the file: a sweep over begins and ends."""
    edges: dict[Any, list[tuple[float, int]]] = defaultdict(list)
    for event in events:
        if event.get("cat") == "cpu_op":
            start, end = float(event["ts"]), float(event["ts"]) + float(event["dur"])
            edges[event["tid"]] += [(start, -1), (end, 1)]
    total = 0.0
    for found in edges.values():
        depth, began = 0, 0.0
        for at, change in sorted(found):
            if depth == 0 and change < 0:
                began = at
            depth -= change
            if depth == 0:
                total += at - began
    return total


def check_png(path: Path) -> None:
    image = image_of.imread(path)
    assert image.shape[0] > 300 and image.shape[1] > 600
    assert image.std() > 0.01, "the plot is blank"


# --- files and figures ---


def test_every_file_of_a_series(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pw = ProfilerWrapper(
        is_st=False, profile_memory=True, enable_print_summary=True,
        enabled_record_cuda_average_time=True, prefix="run", output=tmp_path / "new" / "out",
        row_limit=3,
    )  # fmt: skip
    for size in (16, 32, 64):
        with pw as entered:
            assert entered is pw
            work(size)
    folder = tmp_path / "new" / "out"
    assert not folder.exists()
    paths = pw.leave()
    names = ["run_trace.json", "run_cuda_time_plot.png", "run_memory_usage_line_chart.png"]
    assert paths == [folder / name for name in names]
    assert sorted(os.listdir(folder)) == sorted(names)
    mm = [event for event in events_of(paths[0]) if event["name"] == "aten::mm"]
    assert len(mm) == 5, "the trace is the last entry's"
    for plot in paths[1:]:
        check_png(plot)
    printed = capsys.readouterr().out
    assert printed.count("aten::mm") == 3 and "ProfilerWrapper 'run', entry 2: " in printed
    assert "in operators on the CPU (no GPU time was seen)" in printed
    assert not torch.autograd.profiler._is_profiler_enabled


def test_a_long_prefix_is_cut(tmp_path: Path) -> None:
    prefixes = ["wärme" * 60 + end for end in "ab"]
    for prefix in prefixes:
        pw = ProfilerWrapper(dump_memory_snapshot=True, prefix=prefix, output=tmp_path)
        with pw:
            torch.ones(4).add(1)
        assert len(pw.close()) == 2
    names = os.listdir(tmp_path)
    assert len(names) == 4 and all(name.startswith("wärmewärme") for name in names)


def test_the_figures_are_those_of_the_traces(tmp_path: Path) -> None:
    pw = ProfilerWrapper(
        profile_memory=True, enabled_record_cuda_average_time=True, keep_all_traces=True,
        prefix="all", output=tmp_path, record_shapes=True,
    )  # fmt: skip
    sums = []
    for number in range(4):
        with pw:
            kept = work(16 << number)
        sums.append(sum(each.self_cpu_time_total for each in pw.profiler.key_averages()))
    del kept
    points = pw.series
    trace, *_ = pw.leave()
    assert trace.read_bytes() == (tmp_path / "all_trace_3.json").read_bytes()
    for number, point in enumerate(points):
        events = events_of(tmp_path / f"all_trace_{number}.json")
        assert (point.first, point.entries, point.unprofiled, point.raised) == (number, 1, 0, 0)
        assert point.cpu.total / 1000 == pytest.approx(covered_us(events), abs=0.1)
        assert point.cpu.total / 1000 == pytest.approx(sums[number], rel=0.01)
        assert point.wall.total > point.cpu.total and point.device.total == 0
        memory = [event for event in events if event["name"] == "[memory]"]
        level = peak = 0
        for event in sorted(memory, key=lambda event: float(event["ts"])):
            level += event["args"]["Bytes"]
            peak = max(peak, level)
        assert point.peaks["cpu"].total == peak > 0
    assert pw.total.cpu.mean == sum(point.cpu.total for point in points) / 4
    assert pw.series == points, "the figures stay when the series is left"


@pytest.mark.usefixtures("no_collector")
def test_the_curve_of_memory(tmp_path: Path) -> None:
    pw = ProfilerWrapper(profile_memory=True, output=tmp_path)
    with pw:
        first = torch.empty(1000, dtype=torch.uint8)
        second = torch.empty(5000, dtype=torch.uint8)
        del first
    curve = pw._last.memory["cpu"]  # type: ignore[union-attr]
    assert curve.levels == [0, 1000, 6000, 5000]
    assert (curve.peak, curve.levels[-1]) == (6000, 5000)
    assert sorted(curve.times_ns) == curve.times_ns
    with pw:
        del second
    assert pw._last.memory["cpu"].levels == [0, -5000]  # type: ignore[union-attr]
    check_png(pw.leave()[1])


def test_a_snapshot_of_memory(tmp_path: Path) -> None:
    pw = ProfilerWrapper(dump_memory_snapshot=True, with_stack=True, prefix="run", output=tmp_path)
    for size in (1000, 77_777):
        with pw:
            kept = torch.empty(size, dtype=torch.uint8)
    trace, pickled = pw.leave()
    assert (trace.name, sorted(os.listdir(tmp_path))) == (
        "run_trace.json", sorted([trace.name, pickled.name])
    )  # fmt: skip
    assert re.fullmatch(r"run_mem_\d{8}_\d{6}_\d{6}\.pickle", pickled.name)
    with open(pickled, "rb") as file:
        snapshot = pickle.load(file)
    history = [event for events in snapshot["device_traces"] for event in events]
    (event,) = [event for event in history if event["action"] == "alloc" and event["size"] > 77_000]
    assert any("test_profilerwrapper.py" in frame["filename"] for frame in event["frames"])
    blocks = [block["size"] for segment in snapshot["segments"] for block in segment["blocks"]]
    assert 77_777 in blocks and kept.numel() == 77_777
    page = viewer.trace_plot(snapshot)
    assert "<script" in page


def test_a_snapshot_with_cuda_is_the_allocators(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    switched: list[Any] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch._C, "_cuda_isHistoryEnabled", lambda: False, raising=False)
    monkeypatch.setattr(
        torch.cuda.memory, "_record_memory_history", lambda how, **_: switched.append(how)
    )
    monkeypatch.setattr(
        torch.cuda.memory, "_snapshot", lambda: {"segments": [7], "device_traces": []}
    )
    pw = ProfilerWrapper(
        dump_memory_snapshot=True, export_trace=False, activities=["cpu"], output=tmp_path
    )
    for _ in range(2):
        with pw:
            torch.ones(4) + 1
    assert switched == ["all"]
    (path,) = pw.leave()
    assert switched == ["all", None]
    with open(path, "rb") as file:
        assert pickle.load(file)["segments"] == [7]


@given(st.lists(st.integers(0, 100), min_size=1, max_size=300), st.integers(2, 9))
def test_a_series_is_bounded_and_loses_no_sum(values: list[int], most: int) -> None:
    series = Series(most)
    for number, value in enumerate(values):
        peaks = {"cpu": Spread.of(value)} if value % 2 else {}
        series.add(Point(number, raised=value % 3 == 0, cpu=Spread.of(value), peaks=peaks))
    assert len(series.points) <= most
    assert sum(point.entries for point in series.points) == len(values)
    for point in series.points:
        part = values[point.first : point.first + point.entries]
        odd = [value for value in part if value % 2]
        assert point.cpu == Spread(len(part), sum(part), min(part), max(part))
        assert point.raised == sum(value % 3 == 0 for value in part)
        if odd:
            assert point.peaks["cpu"] == Spread(len(odd), sum(odd), min(odd), max(odd))
    assert series.total.cpu == Spread(len(values), sum(values), min(values), max(values))


def test_a_long_curve_keeps_its_extremes() -> None:
    levels = [number % 100 for number in range(100_000)]
    levels[12_345], levels[77_777] = 10_000, -10_000
    curve = MemoryCurve(list(range(len(levels))), levels, 10_000).thinned()
    assert len(curve.levels) <= CURVE_MAX
    assert (max(curve.levels), min(curve.levels)) == (10_000, -10_000)
    assert curve.times_ns[curve.levels.index(10_000)] == 12_345
    assert sorted(curve.times_ns) == curve.times_ns


@frees_at_once
@pytest.mark.usefixtures("no_collector")
def test_many_entries_hold_the_events_of_one(tmp_path: Path) -> None:
    pw = ProfilerWrapper(enabled_record_cuda_average_time=True, output=tmp_path)
    with pw:
        torch.ones(4) + 1
    gc.collect()  # what torch imports at the first entry leaves a circle of its own
    profilers = []
    for _ in range(30):
        with pw:
            torch.ones(4) + 1
        profilers.append(weakref.ref(pw.profiler))
        assert sum(each() is not None for each in profilers) == 1
    pw.leave()
    assert pw.profiler is None and profilers[-1]() is None


def test_the_titles_say_what_they_show() -> None:
    series = Series()
    series.add(Point(0, cpu=Spread.of(3_000_000)))
    series.add(Point(1, unprofiled=1))
    assert time_title("run", series) == (
        "run: CPU time in operators (no GPU time was seen), mean 3.000 ms an entry\n"
        "2 entries, of them 1 not profiled"
    )
    series.add(Point(2, raised=1, device=Spread.of(1_500_000)))
    assert time_title("run", series).startswith("run: GPU time, mean 1.500 ms an entry")
    assert "no GPU memory was seen" in memory_title("run", ["cpu"])
    assert "on the GPU" in memory_title("run", ["cuda:0", "cuda:1"])


def test_the_table_by_an_old_name_into_a_logger(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    pw = ProfilerWrapper(
        enable_print_summary=True, sort_by="cuda_time_total", output=tmp_path,
        logger=logging.getLogger("a test"), export_trace=False, with_stack=True,
    )  # fmt: skip
    with caplog.at_level(logging.INFO, logger="a test"), pw:
        work()
    assert "aten::mm" in caplog.text and capsys.readouterr().out == ""
    assert any(event.stack for event in pw.profiler.events())
    assert pw.leave() == []


def test_it_is_merged_with_the_timers_trace(profile: Profile, tmp_path: Path) -> None:
    timer = MyTimer(tag="train")
    pw = ProfilerWrapper(prefix="run", output=tmp_path)
    timer.set_step(0)
    timer.start("forward")
    with pw:
        work()
    timer.stop("forward")
    timer.step()
    (trace,) = pw.leave()
    profile.ended()
    out = tmp_path / "merged.json"
    assert csv_to_trace(profile.folder, out, merge=[trace]).messages() == []
    slices = [event for event in events_of(out) if event.get("ph") == "X"]
    (stage,) = [event for event in slices if event["name"] == "forward"]
    products = [event for event in slices if event["name"] == "aten::mm"]
    assert len(products) == 5
    for event in products:
        assert stage["ts"] < event["ts"]
        assert event["ts"] + event["dur"] < stage["ts"] + stage["dur"]


# --- entries and series ---


def test_an_exception_passes_through_and_counts(tmp_path: Path) -> None:
    pw = ProfilerWrapper(enabled_record_cuda_average_time=True, output=tmp_path)
    error = RuntimeError("the user's own")
    calls = []
    with pytest.raises(RuntimeError) as caught, pw:
        calls.append(1)
        work()
        raise error
    assert caught.value is error and error.__context__ is None and calls == [1]
    assert _slot.holder() is None
    with pw:
        work()
    assert [(point.raised, point.unprofiled) for point in pw.series] == [(1, 0), (0, 0)]
    assert pw.series[0].cpu.total > 0
    assert len(pw.leave()) == 2


def test_leaving_twice_unentered_and_again(tmp_path: Path) -> None:
    pw = ProfilerWrapper(prefix="run", output=tmp_path)
    assert (pw.leave(), pw.series, pw.total.entries) == ([], [], 0)
    with pw:
        work()
    assert pw.leave() == [tmp_path / "run_trace.json"]
    assert pw.leave() == []
    for _ in range(2):
        with pw:
            work(times=2)
    assert pw.leave() == [tmp_path / "run.2_trace.json"]
    assert [point.first for point in pw.series] == [0, 1]
    assert sorted(os.listdir(tmp_path)) == ["run.2_trace.json", "run_trace.json"]


def test_leaving_inside_the_block(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    pw = ProfilerWrapper(prefix="run", output=tmp_path)
    with pw:
        work()
        assert pw.leave() == [tmp_path / "run_trace.json"]
        assert _slot.holder() is None
    assert "ProfilerWrapper 'run' is left inside its block" in caplog.text
    assert pw.leave() == []
    with pw:
        work()
    assert pw.leave() == [tmp_path / "run.2_trace.json"]


def test_a_nested_entry_joins_the_outer_one(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pw = ProfilerWrapper(prefix="run", output=tmp_path)
    with pw:
        with pw:
            work(times=2)
        assert _slot.holder() == "ProfilerWrapper 'run'"
        work(times=3)
    (trace,) = pw.leave()
    assert len(pw.series) == 1
    assert sum(event["name"] == "aten::mm" for event in events_of(trace)) == 5
    assert "a nested entry joins the outer one" in caplog.text


def test_while_another_profiler_runs(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    pw = ProfilerWrapper(enabled_record_cuda_average_time=True, output=tmp_path)
    with torch.profiler.profile() as theirs:
        for _ in range(3):
            with pw:
                work()
    assert sum(event.name == "aten::mm" for event in theirs.events() or ()) == 15
    assert caplog.text.count("runs unprofiled: a torch.profiler.profile of the program") == 1
    assert pw.leave() == [] and os.listdir(tmp_path) == []
    assert "no entry was profiled" in caplog.text
    assert pw.total.entries == pw.total.unprofiled == 3
    with torch.profiler.profile(), pw:
        work()
    with pw:
        work()
    assert len(pw.leave()) == 2
    assert [point.unprofiled for point in pw.series] == [1, 0]


def test_ranks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")

    def written(**options: Any) -> list[str]:
        pw = ProfilerWrapper(prefix="run", output=tmp_path, **options)
        with pw:
            work()
        return [path.name for path in pw.leave()]

    assert written() == ["run_rank1_trace.json"]
    assert written(ranks=1) == ["run_rank1_trace.json"]
    assert written(is_st=True, ranks=[0, 1]) == ["run_trace.json"]
    assert written(is_st=True) == written(ranks=[0]) == written(enabled=False) == []


# --- trouble ---


def test_a_folder_that_cannot_be_made(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("")
    pw = ProfilerWrapper(
        profile_memory=True, keep_all_traces=True, prefix="run", output=tmp_path / "file" / "x"
    )
    for _ in range(2):
        with pw:
            work()
    assert pw.leave() == []
    assert caplog.text.count("a trace failed: NotADirectoryError") == 1


def test_what_can_be_written_is_written(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "run_trace.json").mkdir()
    pw = ProfilerWrapper(enabled_record_cuda_average_time=True, prefix="run", output=tmp_path)
    with pw:
        work()
    assert pw.leave() == [tmp_path / "run_cuda_time_plot.png"]
    assert "run_trace.json could not be written: IsADirectoryError" in caplog.text
    assert sorted(os.listdir(tmp_path)) == ["run_cuda_time_plot.png", "run_trace.json"]


def test_a_profiler_that_cannot_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(*_: object, **__: object) -> None:
        raise RuntimeError("torch is in a bad mood")

    pw = ProfilerWrapper(
        enable_print_summary=True, enabled_record_cuda_average_time=True, output=tmp_path
    )
    monkeypatch.setattr(torch.profiler.profile, "key_averages", fails)
    with pw:
        work()
    monkeypatch.setattr(torch.profiler.profile, "start", fails)
    with pw:
        work()
    assert [point.unprofiled for point in pw.series] == [0, 1]
    assert len(pw.leave()) == 2
    assert "the summary failed: RuntimeError: torch is in a bad mood" in caplog.text
    assert "the profiler could not be started" in caplog.text
    assert _slot.holder() is None


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"prefix": ""}, ValueError, "prefix must be the beginning of a file's name"),
        ({"prefix": "a/b"}, ValueError, "prefix"),
        ({"prefix": 3}, TypeError, "prefix must be a str, not 3"),
        ({"ranks": "0"}, TypeError, "ranks"),
        ({"ranks": [-1]}, ValueError, "ranks"),
        ({"row_limit": 0}, ValueError, "row_limit must be at least 1, not 0"),
        ({"row_limit": True}, TypeError, "row_limit"),
        ({"is_st": "no"}, TypeError, "is_st must be a bool, not 'no'"),
        ({"output": 3}, TypeError, "output must be a path, not 3"),
        ({"logger": "print"}, TypeError, "logger must be a logging.Logger or None, not 'print'"),
        ({"sort_by": "colour"}, ValueError, "sort_by must be one of .*, not 'colour'"),
        ({"activities": "cpu"}, TypeError, "activities"),
        ({"activities": ["tpu"]}, ValueError, '"cpu", "cuda" and "xpu", not \'tpu\''),
        ({"activities": []}, ValueError, "activities must not be empty"),
        ({"colour": 1}, TypeError, "colour"),
    ],
)
def test_wrong_arguments(options: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        ProfilerWrapper(**options)


# --- processes ---

NOT_LEFT = """
import sys, torch
from my_utils.profilerwrapper import ProfilerWrapper
pw = ProfilerWrapper(enabled_record_cuda_average_time=True, prefix="run")
with pw:
    torch.ones(4) + 1
with pw:
    torch.ones(4) + 1
    if "inside" in sys.argv: sys.exit(3)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("argument", "status"), [pytest.param("end", 0, marks=pytest.mark.thorough), ("inside", 3)]
)
def test_a_series_that_nobody_leaves(
    run_python: RunPython, tmp_path: Path, argument: str, status: int
) -> None:
    result = run_python("-c", NOT_LEFT, argument)
    assert result.returncode == status, result.stderr
    assert sorted(os.listdir(tmp_path)) == ["run_cuda_time_plot.png", "run_trace.json"]


FORKS = """
import os, torch
from my_utils.profilerwrapper import ProfilerWrapper
torch.set_num_threads(1)
pw = ProfilerWrapper(prefix="parent")
def wait(child):
    assert os.waitpid(child, 0)[1] == 0

with pw:
    torch.ones(4) + 1
    if (child := os.fork()):
        wait(child)
if not child:
    print(pw.leave(), pw.leave(), flush=True)
    os._exit(0)  # as multiprocessing does; torch's profiler hangs a child that exits otherwise

if not (child := os.fork()):
    pw.output /= "child"
    with pw:
        torch.ones(4) + 1
    print(len(pw.leave()), flush=True)
    os._exit(0)
wait(child)
print([str(path) for path in pw.leave()], flush=True)
"""


@pytest.mark.slow
def test_forked_children(run_python: RunPython, tmp_path: Path) -> None:
    result = run_python("-c", FORKS)
    assert result.returncode == 0, result.stderr
    assert result.stdout == "[] []\n1\n['parent_trace.json']\n", result.stderr
    assert sorted(os.listdir(tmp_path)) == ["child", "parent_trace.json"]
    assert events_of(tmp_path / "parent_trace.json")


BARE = """
import sys
sys.modules["matplotlib"] = None
from my_utils.profilerwrapper import ProfilerWrapper
pw = ProfilerWrapper(enabled=False, profile_memory=True)
with pw: pass
assert pw.leave() == []
assert "torch" not in sys.modules and "numpy" not in sys.modules
ProfilerWrapper(prefix="no plots")
ProfilerWrapper(profile_memory=True)
"""


def test_without_matplotlib(run_python: RunPython) -> None:
    result = run_python("-c", BARE)
    assert result.stderr.splitlines()[-1].startswith(
        "ImportError: a plot of ProfilerWrapper needs matplotlib"
    )
    assert "pip install matplotlib" in result.stderr


@pytest.mark.gpu
def test_on_a_gpu(tmp_path: Path) -> None:
    pw = ProfilerWrapper(
        profile_memory=True, enabled_record_cuda_average_time=True, dump_memory_snapshot=True,
        prefix="run", output=tmp_path,
    )  # fmt: skip
    before = torch.empty(1 << 20, device="cuda")
    for _ in range(3):
        with pw:
            x = torch.ones(512, 512, device="cuda")
            (x @ x).sum().item()
        device_us = sum(
            each.self_device_time_total
            for each in pw.profiler.key_averages()
            if each.device_type.name == "CUDA" and not each.is_user_annotation
        )
    last = pw.series[-1]
    assert last.device.total / 1000 == pytest.approx(device_us, rel=0.01)
    index = torch.cuda.current_device()
    assert last.peaks[f"cuda:{index}"].total > before.nbytes
    names = [path.name for path in pw.leave()]
    assert len(names) == 4 and names[-1].startswith("run_mem_")
    assert not torch._C._cuda_isHistoryEnabled()
