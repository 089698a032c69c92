"""Ends of a process that no atexit function sees, and what a restart finds afterwards."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

import pytest

from ..conftest import RunPython
from .programs import finished, rows_of, run, steps_of

CSV = "logs/profile_rank_0.csv"

ENDS = {
    "os._exit": ("os._exit(7)", 7),
    "abort": ("os.abort()", -signal.SIGABRT),
    "SIGKILL": ("os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL),
    "SIGTERM": ("os.kill(os.getpid(), signal.SIGTERM)", -signal.SIGTERM),
    "SIGSEGV": ("faulthandler._sigsegv()", -signal.SIGSEGV),
}


@pytest.mark.parametrize("end", ENDS)
def test_a_sudden_end_loses_nothing(run_python: RunPython, tmp_path: Path, end: str) -> None:
    statement, status = ENDS[end]
    done = run(
        run_python,
        f"""
        logger.setup("logs", console=False)
        stages(30); timer.step(); stages(30, first=30)
        timer.start("open at the end")
        {statement}
        """,
    )
    assert done.returncode == status, done.stderr
    assert len(list((tmp_path / "logs").glob("*.journal"))) == 1
    finished(run_python, "logger.setup('logs', console=False); stages(1, first=60)")
    assert steps_of(tmp_path / CSV) == list(range(61))
    left_open = [row.kind for row in rows_of(tmp_path / CSV) if row.name == "open at the end"]
    assert left_open == ["START"]
    assert not list((tmp_path / "logs").glob("*.journal"))


@pytest.mark.parametrize("raised", ["ValueError('mine')", "KeyboardInterrupt", "SystemExit(3)"])
def test_an_exception_ends_the_recording_in_good_order(
    run_python: RunPython, tmp_path: Path, raised: str
) -> None:
    done = run(
        run_python,
        f"""
        logger.setup("logs", console=False)
        stages(30)
        with timer.time_stage("raises"):
            raise {raised}
        """,
    )
    assert done.returncode != 0
    assert steps_of(tmp_path / CSV) == list(range(30))
    assert [row.kind for row in rows_of(tmp_path / CSV) if row.name == "raises"] == ["START", "END"]
    assert not list((tmp_path / "logs").glob("*.journal"))


def test_daemon_threads_that_record_to_the_last_do_not_crash_the_end(
    run_python: RunPython, tmp_path: Path
) -> None:
    finished(
        run_python,
        """
        logger.setup("logs", console=False)
        def work(recorded):
            while True:
                stages(100)
                timer.step()
                recorded.set()
        for recorded in [threading.Event() for _ in range(4)]:
            threading.Thread(target=work, args=(recorded,), daemon=True).start()
            recorded.wait()
        """,
    )
    assert steps_of(tmp_path / CSV)


@pytest.mark.parametrize("environment", [{"PYTHONMALLOC": "debug"}, {"PYTHONDEVMODE": "1"}])
def test_a_whole_run_under_the_checks_of_python(
    run_python: RunPython, tmp_path: Path, environment: dict[str, str]
) -> None:
    done = finished(
        run_python,
        """
        logger.setup("logs", console=False, max_csv_bytes=20_000)
        logger.instant("mark", metadata={"a": 1, "b": "x,y=%"})
        def work():
            for step in range(200):
                with timer.time_stage("outer"):
                    stages(1)
                timer.step()
        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads: thread.start()
        for thread in threads: thread.join()
        if os.fork() == 0:
            stages(10); _core.drain(); os._exit(0)
        os.wait()
        logger.set_time_offset(1.5)
        stages(10)
        logger.close()
        logger.setup("elsewhere", console=False)
        stages(10)
        _core.read_journal(_core.output_state()["journal_path"])
        try:
            timer.start(3)
        except TypeError:
            pass
        timer.stop("never started")
        del timer
        """,
        env=environment,
    )
    for word in ("ResourceWarning", "Fatal", "bad leading pad byte", "Traceback"):
        assert word not in done.stderr, done.stderr
    assert steps_of(tmp_path / "elsewhere/profile_rank_0.csv") == list(range(10))


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="counts in /proc")
def test_setup_and_close_leave_no_file_no_thread_and_no_mapping(
    run_python: RunPython, tmp_path: Path
) -> None:
    done = finished(
        run_python,
        """
        import json
        faulthandler.cancel_dump_traceback_later()  # it has a thread
        def held():
            # A thread that was waited for is in the list a moment longer.
            until = time.monotonic() + 30
            while len(os.listdir("/proc/self/task")) > 1 and time.monotonic() < until:
                time.sleep(0.01)
            maps = open("/proc/self/maps").read()
            return {
                "files": len(os.listdir("/proc/self/fd")),
                "threads": len(os.listdir("/proc/self/task")),
                "journals": maps.count(".journal"),
            }
        def once(number):
            logger.setup(f"logs{number % 3}", console=False)
            thread = threading.Thread(target=stages, args=(10,))
            thread.start(); thread.join()
            stages(10); timer.step()
            logger.close()
        once(0)
        before = held()
        for number in range(30):
            once(number)
        print(json.dumps([before, held()]))
        """,
    )
    before, after = json.loads(done.stdout)
    assert after == before
    assert after["threads"] == 1
    assert after["journals"] == 0
    assert sorted(os.listdir(tmp_path / "logs0")) == [
        "profile_rank_0.csv",
        "rank_0.heartbeat.json",
        "rank_0.log",
    ]


@pytest.mark.slow
def test_memory_does_not_grow_with_the_run(run_python: RunPython) -> None:
    """Into a null sink, with step() every 100 pairs, as the benchmark does at ten millions."""
    done = finished(
        run_python,
        """
        import ctypes
        ctypes.CDLL(None).prctl(41, 1, 0, 0, 0)  # PR_SET_THP_DISABLE: no page is made larger
        _core.open_output(kind="null")
        def resident():
            pages = int(open("/proc/self/statm").read().split()[1])
            return pages * resource.getpagesize()
        def laps(count):
            start, stop, step = timer.start, timer.stop, timer.step
            for lap in range(count // 100):
                timer.set_step(lap)
                for _ in range(100):
                    start("stage"); stop("stage")
                step()
        laps(1_000_000)
        before = resident()
        laps(1_000_000)
        print(resident() - before, _core.troubles()["dropped_records"])
        """,
    )
    grown, dropped = map(int, done.stdout.split())
    assert grown < 1 << 20
    assert dropped == 0
