"""An output that hangs, as a dead network mount does: the training does not notice."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from ..conftest import RunPython
from ..fakes import compile_fake
from .programs import finished, steps_of, told

CSV = "logs/profile_rank_0.csv"

# What is written in the foreground is not meant to survive a dead mount, and `auto` writes in the
# foreground only where the file system is known to be local.
PROGRAM = """
import json
logger.setup("logs", console=False, io="background")
def lap(number):
    stages(10, first=10 * number)
    timer.step()
def longest(first, count):
    # But for a few, in which the machine may have stood still.
    return sorted(timed(lap, number) for number in range(first, first + count))[-10]
control = longest(0, 200)
_core.drain()
flag = os.environ["HANG_WHILE"]
open(flag, "w").close()
hanging = longest(200, 200)
if sys.argv[1] == "recovers":
    os.remove(flag)
figures = {"control": control, "hanging": hanging, **_core.troubles()}
figures["close"] = timed(logger.close)
print(json.dumps(figures))
"""


@pytest.fixture(scope="session")
def hanging_writes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compile_fake("hanging_writes.c", tmp_path_factory.mktemp("fake") / "libhanging.so")


def environment(library: Path, folder: Path) -> dict[str, str]:
    return {"LD_PRELOAD": str(library), "HANG_WHILE": str(folder / "hang")}


def test_steps_go_on_while_the_output_hangs_and_nothing_is_lost_when_it_recovers(
    run_python: RunPython, tmp_path: Path, hanging_writes: Path
) -> None:
    done = finished(run_python, PROGRAM, "recovers", env=environment(hanging_writes, tmp_path))
    figures = json.loads(done.stdout.splitlines()[-1])
    # A step that waited for the output would take the five seconds of its limit.
    assert figures["hanging"] < max(2.0, 20 * figures["control"])
    assert figures["dropped_records"] == figures["failed_writes"] == 0
    assert steps_of(tmp_path / CSV) == list(range(4000))


@pytest.mark.slow
def test_a_process_whose_output_hangs_for_ever_ends_in_bounded_time(
    run_python: RunPython, tmp_path: Path, hanging_writes: Path
) -> None:
    began = time.monotonic()
    done = finished(run_python, PROGRAM, "never", env=environment(hanging_writes, tmp_path))
    assert time.monotonic() - began < 40
    figures = json.loads(done.stdout.splitlines()[-1])
    assert figures["hanging"] < max(2.0, 20 * figures["control"])
    assert 4 < figures["close"] < 30
    assert len(told(done, tmp_path / "logs", "does not answer")) == 1
    # Nothing is lost for that: the next process finds the journal.
    finished(run_python, "logger.setup('logs', console=False)")
    assert steps_of(tmp_path / CSV) == list(range(4000))


def test_rings_that_fill_while_the_output_hangs_drop_and_say_so(
    run_python: RunPython, tmp_path: Path, hanging_writes: Path
) -> None:
    done = finished(
        run_python,
        """
        import json
        logger.setup("logs", console=False, io="background")
        open(os.environ["HANG_WHILE"], "w").close()
        for number in range(300):
            stages(100, first=100 * number)
            timer.step()
        os.remove(os.environ["HANG_WHILE"])
        logger.close()
        print(json.dumps(_core.troubles()))
        """,
        env=environment(hanging_writes, tmp_path),
    )
    dropped = json.loads(done.stdout.splitlines()[-1])["dropped_records"]
    assert dropped > 0
    assert len(told(done, tmp_path / "logs", "records were dropped")) == 1
    written = steps_of(tmp_path / CSV)
    assert len(written) == len(set(written)) == 30_000 - dropped
    assert f"count={dropped},reason=ring_full" in (tmp_path / CSV).read_text()


@pytest.mark.slow
def test_a_close_waits_on_for_an_output_that_was_stopped_with_the_whole_process(
    run_python: RunPython, tmp_path: Path, hanging_writes: Path
) -> None:
    """As a machine does that is busy or asleep: an output that answers soon after has not hung."""
    done = finished(
        run_python,
        """
        import subprocess
        logger.setup("logs", console=False, io="background")
        open(os.environ["HANG_WHILE"], "w").close()
        stages(10)
        helper = subprocess.Popen(["sh", "-c", "sleep 0.2; kill -STOP $PPID; sleep 5.5; "
                                  "kill -CONT $PPID; sleep 0.5; rm $HANG_WHILE"])
        logger.close()
        helper.wait()
        """,
        env=environment(hanging_writes, tmp_path),
    )
    assert told(done, tmp_path / "logs", "does not answer") == []
    assert steps_of(tmp_path / CSV) == list(range(10))


@pytest.mark.slow
def test_a_time_offset_that_cannot_be_set_is_said(
    run_python: RunPython, tmp_path: Path, hanging_writes: Path
) -> None:
    """Rows before it must be written with the offset before it, and they cannot be."""
    done = finished(
        run_python,
        """
        logger.setup("logs", console=False, io="background")
        logger.set_time_offset(2.0)
        flag = os.environ["HANG_WHILE"]
        open(flag, "w").close()
        stages(10)
        timer.step()
        while not os.path.exists(flag + ".reached"):
            time.sleep(0.001)
        took = timed(logger.set_time_offset, 5.0)
        os.remove(flag)
        logger.close()
        print(took)
        """,
        env=environment(hanging_writes, tmp_path),
    )
    assert 4 < float(done.stdout) < 30
    assert len(told(done, tmp_path / "logs", "the time offset stays as it was")) == 1
    assert steps_of(tmp_path / CSV) == list(range(10))
    text = (tmp_path / CSV).read_text()
    assert "offset_ns=2000000000" in text and "offset_ns=5000000000" not in text


def test_a_thread_that_could_not_be_started_is_started_by_a_later_step(
    run_python: RunPython, tmp_path: Path
) -> None:
    library = compile_fake("no_threads.c", tmp_path / "libnothreads.so")
    finished(
        run_python,
        """
        flag = os.environ["NO_THREADS"]
        open(flag, "w").close()
        logger.setup("logs", console=False, io="background")
        stages(10)
        timer.step()
        os.remove(flag)
        stages(10, first=10)
        timer.step()
        while open("logs/profile_rank_0.csv").read().count(",END,") < 20:
            time.sleep(0.001)
        os._exit(0)
        """,
        env={"LD_PRELOAD": str(library), "NO_THREADS": str(tmp_path / "no_threads")},
        timeout=60,
    )
    assert steps_of(tmp_path / CSV) == list(range(20))


# Let go after a while, so that what waits for the output goes on and the test fails.
LET_GO = """
import threading
flag = os.environ["HANG_WHILE"]
def let_go():
    os.path.exists(flag) and os.remove(flag)
def hang():
    open(flag, "w").close()
    patience = threading.Timer(60, let_go)
    patience.daemon = True
    patience.start()
"""

TRAINING = (
    "import os"
    + LET_GO
    + """
import torch
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = torch.utils.data.DataLoader(torch.randn(20, 8), batch_size=4)
def epoch():
    for batch in loader:
        optimizer.zero_grad()
        model(batch).sum().backward()
        optimizer.step()
epochs = 3
for _ in range(epochs):
    epoch()
hang()
while not os.path.exists(flag + ".reached"):
    epoch()
    epochs += 1
for _ in range(5):
    epoch()
epochs += 5
print("hung" if os.path.exists(flag) else "waited", 5 * epochs)
let_go()
"""
)


def test_the_end_of_an_epoch_does_not_wait_for_an_output_that_hangs(
    run_python: RunPython, tmp_path: Path, hanging_writes: Path
) -> None:
    (tmp_path / "train.py").write_text(TRAINING, encoding="utf-8")
    done = run_python(
        *("-m", "my_utils", "run", "--quiet", "-o", "logs", "train.py"),
        env=environment(hanging_writes, tmp_path),
    )
    assert done.returncode == 0, done.stderr
    state, steps = done.stdout.split()[-2:]
    assert state == "hung"
    assert steps_of(tmp_path / CSV, "optimizer") == list(range(int(steps)))


def test_a_thread_without_a_place_does_not_stop_the_others_while_the_output_hangs(
    run_python: RunPython, tmp_path: Path, hanging_writes: Path
) -> None:
    done = finished(
        run_python,
        LET_GO
        + """
logger.setup("logs", console=False, io="background")
done, started = threading.Event(), threading.Barrier(65)
def take_a_place():
    stages(1)
    started.wait()
    done.wait()
threads = [threading.Thread(target=take_a_place) for _ in range(64)]
for thread in threads:
    thread.start()
started.wait()
hang()
while not os.path.exists(flag + ".reached"):
    timer.step()
stages(30)  # each of them was four seconds, with the GIL
print("hung" if os.path.exists(flag) else "waited", _core.troubles()["unplaced_records"])
let_go()
done.set()
for thread in threads:
    thread.join()
        """,
        env=environment(hanging_writes, tmp_path),
    )
    assert done.stdout.split()[-2:] == ["hung", "30"]
