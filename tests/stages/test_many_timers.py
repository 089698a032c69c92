"""More timers and threads than there is room for: what is not recorded is said and counted."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from ..conftest import RunPython
from ..faults.programs import finished, rows_of, told

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
    assert len(told(done, tmp_path / "logs", "64 threads and timers at once")) == 1
    found = counts(tmp_path / "logs")
    assert found["later"] == 10
    assert len(found) == PAIRS_MAX + 1
    assert set(found.values()) == {10}


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
    assert len(told(done, tmp_path / "logs", "64 threads and timers at once")) == 1
    found = counts(tmp_path / "logs")
    assert found["early"] == 10 * PAIRS_MAX
    assert 0 < found["later"] <= 40


def test_the_480th_timer_is_refused_while_the_others_live(run_python: RunPython) -> None:
    done = finished(
        run_python,
        PROGRAM
        + """
timers = []
try:
    while True:
        timers.append(MyTimer())
except RuntimeError as error:
    print(len(timers), error)
del timers[:10]
timers += [MyTimer() for _ in range(10)]
record(timers[-1], "stage")
logger.close()
""",
    )
    # One is the recorder's own, for events.
    assert done.stdout == f"{TIMERS_MAX - 1} {TIMERS_MAX} timers live already\n"
