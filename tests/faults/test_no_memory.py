"""A process without address space left: timers, the log and stages do nothing, and say so once."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ..conftest import ROOT, RunPython
from .programs import finished, rows_of, steps_of

pytestmark = pytest.mark.no_torch

# What a training script does, with `room` bytes of address space left.
SCRIPT = """
import resource, socket, sys
import my_utils
from my_utils import GlobalLogger, MyTimer

room = int(sys.argv[1])
timers = [MyTimer()] if sys.argv[2] == "a timer before" else []
with open("/proc/self/statm") as file:
    used = int(file.read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + room, used + room))
timers.append(MyTimer())
GlobalLogger().setup("logs")
for step in range(100):
    for timer in timers:
        timer.set_step(step)
        with timer.time_stage("stage"):
            timer.start("inner")
            timer.stop("inner")
        timer.step()
    GlobalLogger().instant("now")
GlobalLogger().close()
"""


@pytest.mark.parametrize("room", [0, 64 << 10, 1 << 20, 6 << 20, 16 << 20, 40 << 20, 400 << 20])
@pytest.mark.parametrize("before", ["a timer before", "none"])
def test_nothing_is_raised(run_python: RunPython, tmp_path: Path, room: int, before: str) -> None:
    done = run_python("-c", SCRIPT, str(room), before)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr, done.stderr
    csv = tmp_path / "logs" / "profile_rank_0.csv"
    written = csv.read_text().count(",END,") if csv.exists() else 0
    if room >= 400 << 20:
        assert done.stderr == "" and written == 200 * (1 + (before != "none"))
    if written == 0:
        assert "nothing is recorded" in done.stderr or "are lost" in done.stderr, done.stderr


def test_it_is_said_once(run_python: RunPython) -> None:
    done = finished(
        run_python,
        """
        resource.setrlimit(resource.RLIMIT_AS, (1, 1))
        stages(100)
        timer.step()
        stages(100)
        timer.step()
        """,
    )
    assert done.stderr.count("or no memory); its records are lost") == 1, done.stderr


def test_what_comes_after_is_recorded(run_python: RunPython, tmp_path: Path) -> None:
    """From the next step on, although nothing had begun for want of memory."""
    done = run_python(
        "-c",
        """
import resource
from my_utils import GlobalLogger, MyTimer
limits = resource.getrlimit(resource.RLIMIT_AS)
resource.setrlimit(resource.RLIMIT_AS, (1, limits[1]))
timer = MyTimer()
GlobalLogger().set_time_offset(0)
GlobalLogger().instant("now")
with timer.time_stage("without"):
    pass
timer.step()
resource.setrlimit(resource.RLIMIT_AS, limits)
timer.step()
with timer.time_stage("with"):
    pass
GlobalLogger().setup("logs", console=False)
GlobalLogger().close()
""",
    )
    assert done.returncode == 0, done.stderr
    assert len(done.stderr.splitlines()) == 1 and "not enough memory" in done.stderr, done.stderr
    rows = rows_of(tmp_path / "logs" / "profile_rank_0.csv")
    assert [(row.name, row.kind) for row in rows] == [("with", "START"), ("with", "END")]


@pytest.mark.slow
def test_no_request_for_memory_that_fails_is_an_exception(
    run_python: RunPython, tmp_path: Path, failing_calls: Path
) -> None:
    done = run_python(
        "-m", "tests.faults.memory_victims", str(tmp_path / "cases"),
        env={"LD_PRELOAD": str(failing_calls), "PYTHONPATH": str(ROOT)}, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout.splitlines()[-1])
    assert figures["wrong"] == []
    assert figures["runs"] > 300


def test_no_memory_for_the_end_loses_nothing(run_python: RunPython, tmp_path: Path) -> None:
    """The end needs room for a journal in memory. The rows are in the CSV or in the file. They fit
    into the memory that the first row asks for; an interpreter may have left no more."""
    done = finished(
        run_python,
        """
        logger.setup("logs", console=False, rank=0, world_size=1)
        stages(1)
        logger.flush()
        stages(60, first=1)
        resource.setrlimit(resource.RLIMIT_AS, (1, 1))
        logger.close()
        """,
    )
    [log] = (tmp_path / "logs").glob("*.log")
    said = log.read_text(encoding="utf-8") + done.stderr
    assert said.count("could not be closed: map memory for the journal") == 1, said
    assert run_python("-m", "my_utils.csv2trace", "logs", "--recover").returncode == 0
    assert steps_of(tmp_path / "logs" / "profile_rank_0.csv") == list(range(61))


def test_the_text_log_goes_on_when_there_is_memory_again(
    run_python: RunPython, tmp_path: Path
) -> None:
    """On a file system that may hang, a thread writes it. Its lines wait until it can start."""
    done = finished(
        run_python,
        """
        import logging
        from my_utils.record.log import handlers
        handlers._LOCAL = frozenset()  # as on a network file system
        limits = resource.getrlimit(resource.RLIMIT_AS)
        logger.setup("logs", console=False, rank=0, world_size=1)
        with open("/proc/self/statm") as file:
            used = int(file.read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used, limits[1]))
        logging.getLogger("my_utils").warning("without memory")
        resource.setrlimit(resource.RLIMIT_AS, limits)
        logging.getLogger("my_utils").warning("with memory")
        logger.close()
        """,
    )
    [path] = (tmp_path / "logs").glob("*.log")
    text = path.read_text(encoding="utf-8")
    assert 0 < text.index("without memory") < text.index("with memory")
    assert done.stderr.count("does not answer") == 1, done.stderr
