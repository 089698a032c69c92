"""The timer as a training script uses it: what stands in the CSV, and what misuse does."""

from __future__ import annotations

import gc
import inspect
import logging
import os
import statistics
import sys
import threading
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from my_utils.analysis.why import load_run
from my_utils.csv2trace import csv_to_trace
from my_utils.logger import GlobalLogger
from my_utils.utils import DebuggingEvent, MyTimer, NoOpMyTimer

from ...conftest import RunPython
from ...support.live_ranks import wait_until
from ...support.profile_rows import Profile, Row, forget_rows, of_stages, read

pytestmark = pytest.mark.no_torch

HOT_METHODS = ["start", "stop", "time_stage", "set_step", "step", "synchronize_and_log"]
Loose: Any = MyTimer  # for arguments that a type checker would refuse
# How far ticks may be off real time: the rate of the counter is measured while the process runs.
RATE_ERROR = 1e-3


def run_step(timer: MyTimer | NoOpMyTimer, step: int) -> None:
    timer.set_step(step)
    timer.start("iter")
    with timer.time_stage("forward"):
        with timer.time_stage("block"):
            pass
        with timer.time_stage("block"):
            pass
    timer.start("backward")
    timer.stop("backward")
    timer.stop("iter")


# --- what is recorded ---


def test_stages_become_a_tree_of_rows(profile: Profile) -> None:
    timer = MyTimer()
    run_step(timer, 41)
    timer.step()
    rows = profile.rows()
    assert [(row.name, row.kind) for row in rows] == [
        ("iter", "START"),
        ("forward", "START"),
        ("block", "START"),
        ("block", "END"),
        ("block", "START"),
        ("block", "END"),
        ("forward", "END"),
        ("backward", "START"),
        ("backward", "END"),
        ("iter", "END"),
    ]
    nodes = {row.node: row for row in rows if row.kind == "START"}
    above = [nodes[row.parent].name if row.parent else None for row in nodes.values()]
    assert above == [None, "iter", "forward", "forward", "iter"]
    assert {row.step for row in rows} == {41}
    assert {row.tid for row in rows} == {threading.get_native_id()}
    times = [row.time_ns for row in rows]
    assert times == sorted(times)
    for end in rows:
        if end.kind == "END":
            apart = end.time_ns - nodes[end.node].time_ns
            assert end.duration_ns == pytest.approx(apart, rel=1e-2, abs=2)


def test_durations_and_times_agree_with_other_clocks(profile: Profile) -> None:
    timer = MyTimer()
    bounds = []
    for _ in range(20):
        before, real_before = time.perf_counter_ns(), time.time_ns()
        timer.start("sleep")
        inside = time.perf_counter_ns()
        time.sleep(0.002)
        inside_end = time.perf_counter_ns()
        timer.stop("sleep")
        after, real_after = time.perf_counter_ns(), time.time_ns()
        bounds.append((inside_end - inside, after - before, real_before, real_after))
    rows = profile.rows()
    starts = [row for row in rows if row.kind == "START"]
    for (least, most, real_before, real_after), start, end in zip(
        bounds, starts, profile.ended(), strict=True
    ):
        assert end.duration_ns is not None
        assert least * (1 - RATE_ERROR) <= end.duration_ns <= most * (1 + RATE_ERROR)
        slack = 200_000  # the two clocks may be steered apart while the test runs
        assert real_before - slack <= start.time_ns <= end.time_ns <= real_after + slack


def test_every_thread_has_a_tree_of_its_own(profile: Profile) -> None:
    timer = MyTimer()
    together = threading.Barrier(4)

    def work(number: int) -> None:
        together.wait(60)
        for _ in range(200):
            with timer.time_stage(f"outer {number}"):
                timer.start("inner")
                timer.stop("inner")

    threads = [
        threading.Thread(target=work, args=(number,), name=f"worker {number}")
        for number in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    rows = profile.all_rows()
    names = {
        row.metadata["tid"]: row.metadata["thread_name"]
        for row in rows
        if row.name == "my_utils.thread"
    }
    starts = {row.node: row for row in rows if row.kind == "START"}
    assert len(starts) == 4 * 200 * 2
    for row in starts.values():
        if row.name == "inner":
            parent = starts[row.parent]
            assert parent.tid == row.tid
            assert parent.name.split()[1] == names[row.metadata["tid"]].split()[1]
    assert sorted(row.node for row in rows if row.kind == "END") == sorted(starts)


def test_threads_do_not_see_the_stages_of_others() -> None:
    timer = MyTimer()
    depths: list[int] = []
    with timer.time_stage("main"):
        thread = threading.Thread(target=lambda: depths.append(timer.depth))
        thread.start()
        thread.join()
        assert (timer.depth, depths) == (1, [0])


@pytest.mark.parametrize("depth", [5, 64, 65, 300])
def test_recursion_nests(profile: Profile, depth: int) -> None:
    timer = MyTimer()

    def recurse(left: int) -> None:
        if left:
            with timer.time_stage("recurse"):
                recurse(left - 1)

    recurse(depth)
    assert timer.depth == 0
    starts = [row for row in profile.rows() if row.kind == "START"]
    assert len(starts) == depth
    parents = {row.node: row.parent for row in starts}
    level, node = 0, max(starts, key=lambda row: row.time_ns).node
    while node:
        node, level = parents[node], level + 1
    assert level == depth
    assert [len(row[0]) for row in timer.aggregates()] == list(range(1, depth + 1))


@pytest.mark.parametrize(
    "name",
    ["", "späte Stufe", "层", 'say "hi", twice', "two\nlines", "a=b", "100%", " padded ", "a\x00b"],
)
def test_any_name_comes_back_from_the_csv(profile: Profile, name: str) -> None:
    timer = MyTimer()
    with timer.time_stage(name):
        timer.start(name)
        timer.stop(name)
    if "\x00" in name:
        text = (profile.folder / "profile_rank_0.csv").read_bytes()
        timer.step()
        text = (profile.folder / "profile_rank_0.csv").read_bytes()
        assert text.count(name.encode()) == 4
        return
    assert [row.name for row in profile.rows()] == [name] * 4


def test_a_long_name_is_cut_on_a_character(profile: Profile) -> None:
    timer = MyTimer()
    name = "x" + "é" * 200
    timer.start(name)
    timer.stop(name)
    recorded = profile.ended()[0].name
    assert recorded == "x" + "é" * 127
    assert len(recorded.encode()) == 255


@pytest.mark.parametrize("step", [0, -3, 2**62, -(2**62)])
def test_steps_are_any_integer(profile: Profile, step: int) -> None:
    timer = MyTimer()
    timer.set_step(step)
    assert timer.current_step == step
    with timer.time_stage("a"):
        pass
    assert {row.step for row in profile.rows()} == {step}


def test_tags_are_tracks_of_their_own(profile: Profile) -> None:
    train, load = MyTimer(tag="train"), MyTimer(tag="a=b, c")
    with train.time_stage("outer"), load.time_stage("read"):
        pass
    rows = profile.rows()
    assert {row.name: row.metadata["tag"] for row in rows} == {"outer": "train", "read": "a=b, c"}
    assert {row.parent for row in rows} == {0}
    assert [row[0] for row in train.aggregates()] == [("outer",)]


def test_step_writes_what_was_recorded(tmp_path: Path, profile: Profile) -> None:
    timer = MyTimer()
    csv_path = profile.folder / "profile_rank_0.csv"

    def check(write: Callable[[], None]) -> None:
        with timer.time_stage("a"):
            pass
        before = len(of_stages(read(csv_path)))

        def written() -> int:
            write()
            return len(of_stages(read(csv_path))) - before

        wait_until(written)  # a step does not wait long for another thread that drains
        assert written() == 2

    check(timer.step)
    check(timer.synchronize_and_log)


def test_aggregates_agree_with_the_rows(profile: Profile) -> None:
    timer = MyTimer()
    for number in range(300):
        with timer.time_stage("work"):
            sum(range(50 * (number % 7)))
    ((path, count, total, least, most, std, *percentiles),) = timer.aggregates()
    durations = sorted(row.duration_ns or 0 for row in profile.ended())
    rounding = 2 + RATE_ERROR * max(durations)  # ns a stage
    assert (path, count) == (("work",), 300)
    assert total == pytest.approx(sum(durations), abs=300 * rounding)
    assert least == pytest.approx(durations[0], abs=rounding)
    assert most == pytest.approx(durations[-1], abs=rounding)
    assert std == pytest.approx(statistics.pstdev(durations), rel=0.01, abs=rounding)
    for share, value in zip((0.5, 0.9, 0.99), percentiles, strict=True):
        exact = durations[round(share * 300) - 1]
        assert value == pytest.approx(exact, rel=0.01, abs=rounding)


def test_stages_before_setup_are_written_later(tmp_path: Path) -> None:
    forget_rows()
    timer = MyTimer(tag="early")
    run_step(timer, 7)
    GlobalLogger().setup(tmp_path, rank=0, console=False)
    run_step(timer, 8)
    timer.step()
    rows = of_stages(read(tmp_path / "profile_rank_0.csv"))
    GlobalLogger().close()
    assert [row.step for row in rows if row.kind == "END"] == [7] * 5 + [8] * 5


# --- misuse ---


def closed(rows: list[Row]) -> dict[str, str | None]:
    return {row.name: row.metadata.get("closed") for row in rows}


def test_stop_out_of_order_closes_what_is_inside(profile: Profile) -> None:
    timer = MyTimer()
    timer.start("outer")
    timer.start("middle")
    timer.start("inner")
    timer.stop("outer")
    assert timer.depth == 0
    assert timer.closed_stages == 1
    ended = profile.ended()
    assert closed(ended) == {"inner": "out_of_order", "middle": "out_of_order", "outer": None}
    assert len({row.time_ns for row in ended}) == 1


def test_a_stage_left_open_is_closed_at_the_next_step(profile: Profile) -> None:
    timer = MyTimer()
    timer.start("epoch")
    for step in range(3):
        timer.set_step(step)
        with pytest.raises(ZeroDivisionError):
            timer.start("iter")
            timer.start("forward")
            1 / 0  # noqa: B018
    timer.set_step(3)
    assert timer.depth == 1
    timer.stop("epoch")
    ended = profile.ended()
    assert closed(ended) == {"forward": "step", "iter": "step", "epoch": None}
    assert [row.step for row in ended if row.name == "iter"] == [0, 1, 2]


def test_with_ends_the_stage_and_lets_the_exception_through(profile: Profile) -> None:
    timer = MyTimer()
    with pytest.raises(KeyError, match="lost"), timer.time_stage("a"):
        raise KeyError("lost")
    assert closed(profile.ended()) == {"a": None}
    assert timer.closed_stages == timer.unmatched_stops == 0


def test_misuse_is_warned_about_once_and_counted(run_python: RunPython) -> None:
    program = """
from my_utils.utils import MyTimer
timer = MyTimer()
for _ in range(1000):
    timer.stop("never started")
for _ in range(10):
    timer.start("outer")
    timer.start("inner")
    timer.stop("outer")
for step in range(10):
    timer.set_step(step)
    timer.start("left open")
print(timer.unmatched_stops, timer.closed_stages, timer.depth)
"""
    done = run_python("-c", program)
    assert done.stdout == "1000 19 1\n", done.stderr
    lines = done.stderr.splitlines()
    assert len(lines) == 4, done.stderr
    assert "recorded but never written" in lines[3]
    assert "stop('never started') found no stage of that name" in lines[0]
    assert "stop('outer') closed stages inside it" in lines[1]
    assert "set_step() found stages that an earlier step left open" in lines[2]


def test_strict_raises(profile: Profile) -> None:
    timer = MyTimer(strict=True)
    assert timer.strict
    with pytest.raises(RuntimeError, match=r"stop\('lost'\) found no stage of that name"):
        timer.stop("lost")
    timer.start("outer")
    timer.start("inner")
    with pytest.raises(RuntimeError, match=r"stop\('outer'\) closed stages inside it"):
        timer.stop("outer")
    assert timer.depth == 0
    with timer.time_stage("goes on"):
        pass
    assert closed(profile.ended()) == {"inner": "out_of_order", "outer": None, "goes on": None}


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda t: t.start(), TypeError, "start"),
        (lambda t: t.start(1), TypeError, "stage_name must be str, not int"),
        (lambda t: t.start("a", color=1.5), TypeError, "color"),
        (lambda t: t.start("a", colour="red"), TypeError, "colour"),
        (lambda t: t.start("a", "b", "c", "d"), TypeError, "start"),
        (lambda t: t.stop(), TypeError, "stop"),
        (lambda t: t.stop(None), TypeError, "stage_name must be str, not NoneType"),
        (lambda t: t.time_stage([]), TypeError, "stage_name must be str, not list"),
        (lambda t: t.set_step("1"), TypeError, "iteration must be int, not str"),
        (lambda t: t.set_step(2**70), (OverflowError, ValueError), "iteration"),
        (lambda t: t.step(wait="yes"), TypeError, "wait"),
        (lambda t: t.register_stage(3), TypeError, "stage_name must be str, not int"),
        (lambda t: t.set_logger("log"), TypeError, "logger must be a logging.Logger, not str"),
        (lambda t: Loose(use_cuda=1), TypeError, "use_cuda must be a bool, not int"),
        (lambda t: Loose(strict="yes"), TypeError, "strict must be a bool, not str"),
        (lambda t: Loose(tag=3), TypeError, "tag must be a str, not int"),
        (lambda t: Loose(compile="no"), ValueError, 'compile must be "vanish" or "break"'),
        (lambda t: Loose(cuda_stages="("), ValueError, "cuda_stages"),
        (lambda t: Loose(log_dir=3), TypeError, "log_dir must be"),
        (lambda t: Loose(log_dir=""), ValueError, "log_dir must be"),
        (lambda t: Loose(rank="a"), TypeError, "rank must be an int, not str"),
        (lambda t: Loose(rank=-1), ValueError, "rank must be from 0 to"),
    ],
)
@pytest.mark.parametrize("is_set_up", [False, True])
def test_wrong_arguments_are_named(
    call: Callable[[Any], object], error: type[Exception], text: str, is_set_up: bool,
    tmp_path: Path,
) -> None:  # fmt: skip
    if is_set_up:
        GlobalLogger().setup(tmp_path, rank=0, console=False)
    timer = MyTimer()
    with pytest.raises(error) as raised:
        call(timer)
    assert text in str(raised.value)
    assert timer.depth == 0
    GlobalLogger().close()


def test_a_timer_without_init_says_so() -> None:
    timer = MyTimer.__new__(MyTimer)
    with pytest.raises(RuntimeError, match="__init__ was not called"):
        timer.start("a")


# --- many names, many timers ---


def test_new_names_every_step_do_not_grow_memory(run_python: RunPython) -> None:
    program = """
import ctypes, os
ctypes.CDLL(None).prctl(41, 1, 0, 0, 0)  # PR_SET_THP_DISABLE: the kernel makes no page larger
from my_utils import _core
from my_utils.utils import MyTimer
_core.open_output(kind="null")
timer = MyTimer()
def resident_kib():
    with open("/proc/self/status") as file:
        return int(next(line for line in file if line.startswith("VmRSS")).split()[1])
def run(steps):
    for step in steps:
        timer.set_step(step)
        for part in range(10):
            with timer.time_stage(f"step {step} part {part}"):
                timer.start(f"inner {step} {part}")
                timer.stop(f"inner {step} {part}")
        timer.step()
run(range(3000))
before = resident_kib()
run(range(3000, 13000))
print(resident_kib() - before, len(timer.aggregates()))
"""
    done = run_python("-c", program)
    grown_kib, paths = map(int, done.stdout.split())
    assert grown_kib < 1024
    assert paths <= 4096
    assert done.stderr.count("more than 4096 different stage names") == 1


def test_time_stage_hands_out_one_handle_a_name() -> None:
    timer, other = MyTimer(), MyTimer()
    handle = timer.time_stage("forward")
    assert timer.time_stage("for" + "ward"[:4]) is handle
    assert handle.name == "forward"
    assert handle.timer is timer
    assert other.time_stage("forward") is not handle


def test_timers_come_and_go() -> None:
    for _ in range(2000):
        timer = MyTimer()
        timer.start("a")
        timer.stop("a")
        timer.step()
    assert timer.aggregates()[0][1] == 1


def test_timers_that_only_the_collector_frees(profile: Profile) -> None:
    """A timer and the handles of its stages hold each other; training loops switch the collector
    off. There is room for 64 at once."""
    gc.disable()
    try:
        for number in range(200):
            with MyTimer().time_stage(f"of timer {number}"):
                pass
    finally:
        gc.enable()
    names = [row.name for row in profile.ended()]
    assert names == [f"of timer {number}" for number in range(200)]


# --- shape of the classes ---


@pytest.mark.parametrize("timer_class", [MyTimer, NoOpMyTimer])
def test_hot_calls_reach_c_with_nothing_between(timer_class: type[MyTimer]) -> None:
    assert not hasattr(timer_class(), "__dict__")
    for name in HOT_METHODS:
        descriptor = timer_class.__dict__[name]
        assert inspect.ismethoddescriptor(descriptor)
        assert descriptor.__objclass__ is timer_class
    timer = timer_class()
    timer.start("the first stage of a thread asks for the thread's name")
    timer.stop("the first stage of a thread asks for the thread's name")
    frames: list[str] = []
    gc.disable()  # what it calls back is not part of the calls
    sys.setprofile(lambda frame, event, arg: frames.append(event) if event == "call" else None)
    try:
        timer.set_step(1)
        timer.start("a")
        with timer.time_stage("b"):
            pass
        timer.stop("a")
        timer.step()
    finally:
        sys.setprofile(None)
        gc.enable()
    assert frames == []


def test_a_subclass_keeps_the_fast_methods() -> None:
    class Mine(MyTimer):
        __slots__ = ()

        def set_step(self, iteration: int) -> None:
            super().set_step(iteration * 10)

    assert Mine.__dict__["start"].__objclass__ is Mine
    timer = Mine(tag="mine")
    timer.set_step(3)
    assert timer.current_step == 30


def public(timer_class: type) -> set[str]:
    return {name for name in dir(timer_class) if not name.startswith("_")}


def test_the_disabled_timer_has_the_same_surface() -> None:
    assert public(NoOpMyTimer) == public(MyTimer)
    for name in public(MyTimer) | {"__init__"}:
        enabled, disabled = getattr(MyTimer, name), getattr(NoOpMyTimer, name)
        if callable(enabled):
            assert inspect.signature(disabled) == inspect.signature(enabled), name


def test_the_disabled_timer_does_nothing(profile: Profile, tmp_path: Path) -> None:
    timer = NoOpMyTimer(use_cuda=True, tag="t", log_dir=tmp_path / "no", rank=3)
    run_step(timer, 5)
    timer.stop("never started")
    timer.register_stage("a", "red", domain_name="d")
    timer.set_logger(None)
    timer.step(wait=False)
    timer.synchronize_and_log()
    report = timer.generate_report("a", tmp_path / "report.txt", "1:2")
    timer.generate_csv(report, tmp_path / "report.csv")
    assert (timer.depth, timer.current_step, timer.unmatched_stops) == (0, 0, 0)
    assert not report["stages"]
    assert not report["iterations"]
    assert timer.aggregates() == []
    assert profile.rows() == []
    assert os.listdir(tmp_path) == ["logs"]


def test_reports_have_the_same_keys_enabled_or_not() -> None:
    assert NoOpMyTimer().generate_report("x").keys() == MyTimer().generate_report("x").keys()


@pytest.mark.parametrize(
    ("value", "kind", "rows"),
    [("1", "MyTimer", 2), ("0", "NoOpMyTimer", 0), (None, "NoOpMyTimer", 0)],
)
def test_global_timer(
    run_python: RunPython, tmp_path: Path, value: str | None, kind: str, rows: int
) -> None:
    program = """
from my_utils import GlobalLogger
from my_utils.utils import global_timer
GlobalLogger().setup("logs", console=False)
with global_timer.time_stage("a"):
    pass
print(type(global_timer).__name__)
"""
    done = run_python("-c", program, env={} if value is None else {"ENABLE_TIMER": value})
    assert done.stdout.split() == [kind], done.stderr
    assert len(of_stages(read(tmp_path / "logs" / "profile_rank_0.csv"))) == rows


def test_the_variables_are_read_at_import_and_again_at_reload(run_python: RunPython) -> None:
    program = """
import importlib, os, my_utils
NAMES = ("ENABLE_TIMER", "ENABLE_MEMORY_SNAPSHOT", "DEBUG_DATA_CONSISTENCY")
def show():
    print(type(my_utils.utils.global_timer).__name__, my_utils.utils.ChecksumUtils.enabled,
          type(my_utils.memory_snapshot.global_snapshotter).__name__)
os.environ.update(dict.fromkeys(NAMES, "1"))
import my_utils.utils, my_utils.memory_snapshot
os.environ.update(dict.fromkeys(NAMES, "0"))
show()
kept = my_utils.utils.global_timer
assert my_utils.global_timer is kept and kept is my_utils.utils.global_timer
for on in "01":
    os.environ.update(dict.fromkeys(NAMES, on))
    for module in (my_utils.utils, my_utils.memory_snapshot):
        assert importlib.reload(module) is module
    show()
assert my_utils.utils.global_timer is not kept
"""
    done = run_python("-c", program)
    on, off = "MyTimer True MemorySnapshotter", "NoOpMyTimer False NoOpMemorySnapshotter"
    assert done.stdout.splitlines() == [on, off, on], done.stderr


# --- where a timer writes ---


def test_log_dir_is_used_when_nothing_was_set_up(run_python: RunPython, tmp_path: Path) -> None:
    program = """
from my_utils.logger import GlobalLogger
from my_utils.utils import MyTimer
timer = MyTimer(log_dir="first")
with timer.time_stage("a"):
    pass
timer.step()
GlobalLogger().setup("second", console=False)
second = MyTimer(log_dir="third")
with timer.time_stage("b"), second.time_stage("c"):
    pass
"""
    done = run_python("-c", program)
    assert (done.returncode, done.stderr) == (0, "")
    names = {
        path.parent.name: [row.name for row in of_stages(read(path)) if row.kind == "END"]
        for path in tmp_path.glob("*/profile_rank_0.csv")
    }
    assert names == {"first": ["a"], "second": ["c", "b"]}
    assert (tmp_path / "first" / "rank_0.log").exists()


@pytest.mark.parametrize(
    ("given", "environment", "rank"),
    [
        ("None", {}, 0),
        ("None", {"OMPI_COMM_WORLD_RANK": "3"}, 3),
        ("None", {"OMPI_COMM_WORLD_RANK": "3", "SLURM_PROCID": "2"}, 2),
        ("None", {"OMPI_COMM_WORLD_RANK": "3", "SLURM_PROCID": "2", "RANK": "1"}, 1),
        ("5", {"RANK": "1"}, 5),
        ("0", {"RANK": "1"}, 0),
    ],
)
def test_the_rank_of_log_dir(
    run_python: RunPython, tmp_path: Path, given: str, environment: dict[str, str], rank: int
) -> None:
    program = f"""
from my_utils.utils import MyTimer
timer = MyTimer(log_dir="logs", rank={given})
with timer.time_stage("a"):
    pass
print(timer.generate_report("")["rank"])
"""
    done = run_python("-c", program, env=environment)
    assert done.stdout.split() == [str(rank)], done.stderr
    assert [path.name for path in tmp_path.glob("logs/*.csv")] == [f"profile_rank_{rank}.csv"]


def test_a_folder_that_cannot_be_made_does_not_stop_the_run(run_python: RunPython) -> None:
    program = """
from my_utils.utils import MyTimer
timer = MyTimer(log_dir="/dev/null/logs")
with timer.time_stage("a"):
    pass
timer.step()
print(timer.generate_report("")["stages"][0]["count"])
"""
    done = run_python("-c", program)
    assert done.stdout == "1\n", done.stderr
    assert "/dev/null/logs" in done.stderr


# --- messages, events, layers ---


def test_messages_go_to_the_logger_that_was_set(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    timer = MyTimer()
    timer.set_logger(logging.getLogger("training"))
    with caplog.at_level(logging.INFO):
        timer.generate_report("", tmp_path / "report.txt")
    assert [(record.name, record.message) for record in caplog.records] == [
        ("training", f"timer report written to {tmp_path / 'report.txt'}")
    ]


def test_warnings_of_misuse_go_to_the_logger_that_was_set(
    caplog: pytest.LogCaptureFixture,
) -> None:
    timers = {name: MyTimer() for name in ("misused.first", "misused.second")}
    for name, timer in timers.items():
        timer.set_logger(logging.getLogger(name))
        for _ in range(2):
            timer.stop("never started")
            timer.set_step(1)
            timer.start("left open")
            timer.set_step(2)
            timer.set_step(3)
    found = [(record.name, record.message[:10]) for record in caplog.records]
    each = ["stop('neve", "set_step()"]
    assert found == [(name, text) for name in timers for text in each]


def set_it_from_here(event: DebuggingEvent) -> None:
    event.set()


def test_a_debugging_event_logs_who_set_it(caplog: pytest.LogCaptureFixture) -> None:
    event = DebuggingEvent("batch ready", logging.getLogger("events"))
    waiter = threading.Thread(target=event.wait, args=(60,))
    waiter.start()
    with caplog.at_level(logging.INFO, logger="events"):
        thread = threading.Thread(target=set_it_from_here, args=(event,), name="loader")
        thread.start()
        thread.join()
    waiter.join(60)
    assert not waiter.is_alive()
    assert event.is_set()
    (record,) = caplog.records
    lines = record.getMessage().splitlines()
    assert lines[0] == "event 'batch ready' was set by thread loader:"
    assert lines[-2].endswith("in set_it_from_here")
    assert lines[-1].strip() == "event.set()"
    event.clear()
    assert not event.is_set()


def test_a_debug_layer_passes_everything_on() -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    from my_utils.utils import DebugLayer

    layer = DebugLayer("here")
    x = torch.ones(2, requires_grad=True)
    assert layer(x) is x
    assert layer(x, None) == (x, None)
    assert repr(torch.nn.Sequential(layer)) == "Sequential(\n  (0): DebugLayer('here')\n)"
    assert list(layer.parameters()) == []
    with pytest.raises(TypeError, match="name must be a str, not int"):
        DebugLayer(3)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", [MyTimer, NoOpMyTimer])
def test_the_signature_of_the_class_is_that_of_its_call(kind: type) -> None:
    names = list(inspect.signature(kind).parameters)
    assert names == ["use_cuda", "tag", "log_dir", "cuda_stages", "strict", "compile", "rank"]


@pytest.mark.parametrize("step", [-(2**63), -(2**63) + 1, 2**63 - 1])
def test_every_step_that_is_taken_is_read(profile: Profile, tmp_path: Path, step: int) -> None:
    timer = MyTimer(tag="ends")
    timer.set_step(step)
    with timer.time_stage("forward"):
        pass
    timer.step()
    profile.close()
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # of rows that are left out
        assert csv_to_trace(profile.folder, tmp_path / "trace.json").slices == 1
    assert load_run(profile.folder).steps.tolist() == [step]
    with pytest.raises(ValueError, match=r"iteration must be from -9223372036854775808 to"):
        timer.set_step(2**63 if step > 0 else -(2**63) - 1)


# --- parameters of others ------------------------------------------------------------------------


@pytest.mark.parametrize("timer_class", [MyTimer, NoOpMyTimer])
def test_parameters_of_others_at_their_values_here(timer_class: Any) -> None:
    timer_class(
        tag="t", verbose=False, profile_memory=False, use_nvtx=True, labeler=None, nvtx_domain=None
    )
    timer_class().register_stage("forward", "blue", "domain", None)


@pytest.mark.parametrize(
    "given, message",
    [
        ({"verbose": True}, "takes only verbose=False: generate_report"),
        ({"profile_memory": True}, "takes only profile_memory=False: GPU_Performance_Tracker"),
        ({"use_nvtx": False}, "takes only use_nvtx=True: stages are NVTX ranges"),
        ({"labeler": object()}, r"takes only labeler=None: start\(color=, domain_name=\)"),
        ({"nvtx_domain": "x"}, r"takes only nvtx_domain=None: start\(domain_name=\)"),
    ],
)
def test_parameters_of_others_say_what_to_use(given: dict[str, Any], message: str) -> None:
    with pytest.raises(TypeError, match=message):
        MyTimer(**given)


@pytest.mark.parametrize("how", [("blue", None, "c"), ()])
def test_the_category_of_a_stage_is_the_tag(how: tuple[Any, ...]) -> None:
    given: dict[str, Any] = {} if how else {"category": "c"}
    with pytest.raises(TypeError, match=r"takes only category=None: the category .* is its tag"):
        MyTimer().register_stage("forward", *how, **given)
