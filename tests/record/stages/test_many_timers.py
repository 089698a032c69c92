"""More timers and threads than there is room for: what is not recorded is said and counted."""

from __future__ import annotations

import signal
from collections import Counter
from pathlib import Path

import pytest

from ...conftest import RunPython
from ...faults.programs import finished, rows_of, run, told
from ...support import profile_rows

pytestmark = pytest.mark.no_torch

PAIRS_MAX, TIMERS_MAX = 64, 480

PROGRAM = """
from my_utils import MyTimer
logger.setup("logs", console=False)
tasks = len(os.listdir("/proc/self/task"))
del timer
def record(timer, name):
    for step in range(10):
        timer.set_step(step)
        timer.start(name)
        timer.stop(name)
"""


def counts(logs: Path) -> Counter[str]:
    return Counter(row.name for row in rows_of(logs / "profile_rank_0.csv") if row.kind == "END")


@pytest.mark.parametrize("threads", [1, 5])
def test_the_65th_pair_is_not_recorded_and_that_is_said_once(
    run_python: RunPython, tmp_path: Path, threads: int
) -> None:
    """The others have all their rows, and a pair that ends makes room for another."""
    done = finished(
        run_python,
        PROGRAM
        + """
threads = int(sys.argv[1])
timers = [MyTimer() for _ in range(65 // threads)]
done = threading.Barrier(threads)
def on_a_thread(number):
    for place, timer in enumerate(timers):
        record(timer, f"pair {number * len(timers) + place}")
    done.wait()  # a thread that ends gives its place back
others = [threading.Thread(target=on_a_thread, args=(number,)) for number in range(threads)]
for other in others:
    other.start()
for other in others:
    other.join()
while len(os.listdir("/proc/self/task")) > tasks:
    time.sleep(0.001)  # a thread may be joined before it has given its places back
record(timers[0], "later")
print(_core.troubles()["dropped_lanes"])
logger.close()
""",
        str(threads),
    )
    assert int(done.stdout) == 30  # calls
    assert len(told(done, tmp_path / "logs", "64 pairs of threads and timers at once")) == 1
    found = counts(tmp_path / "logs")
    assert found["later"] == 10
    assert len(found) == PAIRS_MAX + 1
    assert set(found.values()) == {10}
    assert lost_rows(tmp_path / "logs") == [(10, "no_room")]
    status, text = trace_of(run_python)
    assert (status, "is in no row (10 rows)" in text) == (3, True), text


def test_what_was_lost_stays_counted_when_the_collector_makes_room(
    run_python: RunPython, tmp_path: Path
) -> None:
    done = finished(
        run_python,
        PROGRAM
        + """
import gc
gc.disable()
timers = [MyTimer() for _ in range(65)]
for timer in timers:
    record(timer, "early")
before = _core.troubles()["dropped_lanes"]
timers.append(timers)
del timers, timer
later = MyTimer()
for _ in range(4):
    record(later, "later")
print(before, _core.troubles()["dropped_lanes"])
logger.close()
""",
    )
    before, lost = map(int, done.stdout.split())
    assert before == 30
    assert lost >= before
    assert len(told(done, tmp_path / "logs", "64 pairs of threads and timers at once")) == 1
    found = counts(tmp_path / "logs")
    assert found["early"] == 10 * PAIRS_MAX
    assert 0 < found["later"] <= 40


def lost_rows(logs: Path, pattern: str = "*.csv") -> list[tuple[int, str]]:
    """(count, reason) of each row about records that were lost."""
    rows = [row for path in sorted(logs.glob(pattern)) for row in profile_rows.read(path)]
    return [
        (int(row.metadata["count"]), row.metadata["reason"])
        for row in rows
        if row.name == "my_utils.dropped"
    ]


def trace_of(run_python: RunPython, *arguments: str) -> tuple[int, str]:
    done = run_python("-m", "my_utils.csv2trace", *arguments, "logs", "-o", "trace.json")
    return done.returncode, done.stderr


def test_timers_beyond_the_479th_record_nothing_and_the_rows_count_it(
    run_python: RunPython, tmp_path: Path
) -> None:
    done = finished(
        run_python,
        PROGRAM
        + """
timers = [MyTimer() for _ in range(int(sys.argv[1]) + 5)]
for timer in timers[-6:]:
    record(timer, "stage")
    timer.step()
    timer.generate_report("", None)
with timers[-1].time_stage("with"):
    pass
found = timers[-1].aggregates(), timers[-1].depth, _core.troubles()
del timers[:10], timer
timers += [MyTimer() for _ in range(10)]
record(timers[-1], "later")
print(*found[:2], found[2]["unplaced_timers"], found[2]["unplaced_records"], end=" ")
print(_core.troubles()["unplaced_timers"], _core.troubles()["dropped_lanes"])
logger.close()
""",
        str(TIMERS_MAX - 1),  # one is the recorder's own, for events
    )
    assert done.stdout == "[] 0 5 51 5 0\n"
    assert len(told(done, tmp_path / "logs", "479 timers live already")) == 1
    assert counts(tmp_path / "logs") == {"stage": 10, "later": 10}
    assert sum(count for count, _ in lost_rows(tmp_path / "logs")) == 51
    assert {reason for _, reason in lost_rows(tmp_path / "logs")} == {"no_room"}
    status, text = trace_of(run_python)
    assert (status, "is in no row (51 rows)" in text) == (3, True), text


@pytest.mark.parametrize("way", ["recovered", "adopted"])
def test_what_found_no_room_is_counted_after_a_kill(
    run_python: RunPython, tmp_path: Path, way: str
) -> None:
    done = run(
        run_python,
        PROGRAM
        + """
timers = [MyTimer() for _ in range(66)]
for timer in timers[:65]:
    record(timer, "early")
timers[0].step()
record(timers[65], "late")
record(timers[64], "late")
os.kill(os.getpid(), signal.SIGKILL)
""",
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert lost_rows(tmp_path / "logs") == [(10, "no_room")]
    if way == "adopted":
        finished(run_python, "logger.setup('logs', console=False)")
        assert lost_rows(tmp_path / "logs") == [(10, "no_room"), (20, "no_room")]
    status, text = trace_of(run_python, *["--recover"] * (way == "recovered"))
    assert (status, "is in no row (30 rows)" in text) == (3, True), text


def test_a_forked_child_does_not_count_what_its_parent_lost(
    run_python: RunPython, tmp_path: Path
) -> None:
    finished(
        run_python,
        PROGRAM
        + """
timers = [MyTimer() for _ in range(65)]
for timer in timers:
    record(timer, "of the parent")
for step in range(20_000):  # the ring is full
    timers[0].start("of the parent")
    timers[0].stop("of the parent")
timers[0].step()
child = os.fork()
if child == 0:
    record(timers[64], "of the child")
    timers[64].step()
    logger.close()
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
logger.close()
""",
    )
    logs = tmp_path / "logs"
    assert (10, "no_room") in lost_rows(logs, "profile_rank_0.csv")
    assert lost_rows(logs, "profile_rank_0.w1.csv") == []
    assert len([row for row in rows_of(logs / "profile_rank_0.w1.csv") if row.kind == "END"]) == 10


def test_a_process_without_a_thread_key_goes_on_without_records(
    run_python: RunPython, tmp_path: Path
) -> None:
    done = run_python(
        "-c",
        """
import ctypes, os
from my_utils import GlobalLogger, MyTimer, _core
key = ctypes.c_uint()
while ctypes.CDLL(None).pthread_key_create(ctypes.byref(key), None) == 0:
    pass
logger = GlobalLogger()
logger.setup("logs", console=False)
timers = [MyTimer(), MyTimer(tag="other")]
for timer in timers:
    timer.set_step(1)
    with timer.time_stage("stage"):
        logger.instant("now")
    timer.step()
    assert timer.generate_report("", None)["stages"] == []
child = os.fork()
if child == 0:
    with timers[0].time_stage("stage"):
        os._exit(0)
assert os.waitpid(child, 0)[1] == 0
print(_core.troubles()["no_thread_key"] > 0, _core.troubles()["no_memory"])
logger.close()
""",
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "True 0\n"
    assert len(told(done, tmp_path / "logs", "all thread keys")) == 1
    assert len(told(done, tmp_path / "logs", "no thread key is left")) == 1
