"""Where the files of a run go: several processes, restarts, moves, failures, rotation, ends."""

from __future__ import annotations

import csv
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ...conftest import ROOT, RunPython
from ...support.profile_rows import only_opens

HEADER = "timestamp_unix,readable_time,machine_id,step,event_name,event_type,duration_ms,metadata\n"

# What each program below begins with.
PREAMBLE = """
import os, sys, json, signal, threading, time
from my_utils import _core
from my_utils.logger import GlobalLogger
logger = GlobalLogger()
def events(count, name="e", first=0):
    for step in range(first, first + count):
        logger.instant(name, step=step)
"""


def program(text: str) -> str:
    return PREAMBLE + textwrap.dedent(text)


def run(
    run_python: RunPython, text: str, *arguments: str, **options: Any
) -> subprocess.CompletedProcess[str]:
    return run_python("-c", program(text), *arguments, **options)


def finished(
    run_python: RunPython, text: str, *arguments: str, **options: Any
) -> subprocess.CompletedProcess[str]:
    done = run(run_python, text, *arguments, **options)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr, done.stderr
    return done


def rows_of(path: Path) -> list[dict[str, str]]:
    text = path.read_text(encoding="utf-8")
    assert text.startswith(HEADER)
    assert text.endswith("\n")
    with open(path, encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file) if not only_opens(row)]
    assert all(None not in row and None not in row.values() for row in rows)
    return rows


def steps_of(path: Path, name: str = "e") -> list[int]:
    return [int(row["step"]) for row in rows_of(path) if row["event_name"] == name]


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


CLOSED = ["profile_rank_0.csv", "rank_0.heartbeat.json", "rank_0.log"]


# --- the end of a process ------------------------------------------------------------------------


@pytest.mark.parametrize(
    "end",
    ["pass", "sys.exit(0)", "logger.close()", "import gc; del logger; gc.collect()"],
)
def test_at_the_end_rows_are_written_and_the_journal_is_gone(
    run_python: RunPython, tmp_path: Path, end: str
) -> None:
    finished(run_python, f"logger.setup('logs', console=False); events(1000); {end}")
    assert steps_of(tmp_path / "logs/profile_rank_0.csv") == list(range(1000))
    assert names_in(tmp_path / "logs") == CLOSED


def test_an_uncaught_exception_loses_nothing(run_python: RunPython, tmp_path: Path) -> None:
    done = run(run_python, "logger.setup('logs', console=False); events(10); raise OSError('x')")
    assert done.returncode == 1
    assert done.stderr.endswith("OSError: x\n")
    assert steps_of(tmp_path / "logs/profile_rank_0.csv") == list(range(10))
    assert names_in(tmp_path / "logs") == CLOSED


def test_messages_of_exit_functions_registered_earlier_reach_the_text_log(
    run_python: RunPython, tmp_path: Path
) -> None:
    finished(
        run_python,
        """
        import atexit
        atexit.register(lambda: logger.get_logger().info("the very last"))
        logger.setup("logs", console=False)
        """,
    )
    assert (tmp_path / "logs/rank_0.log").read_text().endswith("INFO the very last\n")


def test_rows_of_threads_that_ended_before_are_written(
    run_python: RunPython, tmp_path: Path
) -> None:
    finished(
        run_python,
        """
        logger.setup("logs", console=False)
        threads = [threading.Thread(target=events, args=(500, f"t{i}")) for i in range(8)]
        [t.start() for t in threads]; [t.join() for t in threads]
        """,
    )
    for number in range(8):
        path = tmp_path / "logs/profile_rank_0.csv"
        assert steps_of(path, f"t{number}") == list(range(500))


def test_nothing_is_made_without_setup(run_python: RunPython, tmp_path: Path) -> None:
    done = finished(run_python, "events(10); print(len(_core.memory_rows().splitlines()))")
    assert int(done.stdout) >= 10
    assert list(tmp_path.iterdir()) == []


# --- setup again ---------------------------------------------------------------------------------


def test_setup_with_the_same_arguments_changes_nothing(
    run_python: RunPython, tmp_path: Path
) -> None:
    done = finished(
        run_python,
        """
        logger.setup("logs", console=False); events(3)
        before = _core.output_state() | {"csv_bytes": 0}
        os.chdir("/")
        for _ in range(3):
            logger.setup(sys.argv[1] + "/logs", console=False)
        assert _core.output_state() | {"csv_bytes": 0} == before, _core.output_state()
        events(3, first=3)
        """,
        str(tmp_path),
    )
    assert done.stderr == ""
    rows = rows_of(tmp_path / "logs/profile_rank_0.csv")
    assert [row["event_name"] for row in rows].count("my_utils.process") == 1
    assert steps_of(tmp_path / "logs/profile_rank_0.csv") == list(range(6))


def test_setup_elsewhere_moves_text_csv_and_journal(run_python: RunPython, tmp_path: Path) -> None:
    done = finished(
        run_python,
        """
        logger.setup("one", rank=0, console=False); log = logger.get_logger()
        log.info("in one"); events(5)
        timer = _core.Timer(); timer.set_step(5); timer.start("open"); timer.start("short")
        timer.stop("short")
        logger.setup("two", rank=3, world_size=4, console=False)
        log.info("in two"); events(5, first=5)
        timer.stop("open")
        print(json.dumps(sorted(os.listdir("one"))))
        """,
    )
    assert json.loads(done.stdout) == CLOSED
    assert steps_of(tmp_path / "one/profile_rank_0.csv") == list(range(5))
    assert steps_of(tmp_path / "two/profile_rank_3.csv") == list(range(5, 10))
    assert "in one" in (tmp_path / "one/rank_0.log").read_text()
    assert "in two" not in (tmp_path / "one/rank_0.log").read_text()
    assert (tmp_path / "two/rank_3.log").read_text().count("\n") == 1
    kinds = [
        (folder, row["event_type"])
        for folder, rank in (("one", 0), ("two", 3))
        for row in rows_of(tmp_path / folder / f"profile_rank_{rank}.csv")
        if row["event_name"] == "open"
    ]
    assert kinds == [("one", "START"), ("two", "START"), ("two", "END")]
    assert names_in(tmp_path / "two") == [
        "profile_rank_3.csv",
        "rank_3.heartbeat.json",
        "rank_3.log",
    ]


def test_other_limits_in_the_same_directory_are_taken(
    run_python: RunPython, tmp_path: Path
) -> None:
    finished(
        run_python,
        """
        logger.setup("logs", console=False); events(5)
        logger.setup("logs", console=False, max_csv_bytes=4096, machine_id="other")
        for first in range(5, 205, 20):
            events(20, first=first); logger.flush(30)
        """,
    )
    files = sorted((tmp_path / "logs").glob("profile_rank_0*.csv"))
    assert len(files) > 3
    parts = [*files[1:], files[0]]  # the file without a number is the newest
    assert [step for path in parts for step in steps_of(path)] == list(range(205))
    machines = {row["machine_id"] for row in rows_of(files[0])}
    assert machines == {"other"}


def test_a_run_in_the_directory_of_an_older_one_appends(
    run_python: RunPython, tmp_path: Path
) -> None:
    for run_number in range(3):
        text = f"logger.setup('logs', console=False); events(2, first={2 * run_number})"
        finished(run_python, text)
    path = tmp_path / "logs/profile_rank_0.csv"
    assert steps_of(path) == list(range(6))
    attempts = re.findall(r"attempt=(\d+)", path.read_text())
    assert attempts == ["1", "2", "3"]


# --- several processes ---------------------------------------------------------------------------


def start_python(folder: Path, text: str, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", program(text), *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


WAITS_FOR_A_LINE = """
logger.setup("logs", console=False); events(5)
print("ready", flush=True); sys.stdin.readline()
events(5, first=5)
"""


def test_two_living_processes_of_one_rank_write_two_files_and_warn_once(
    run_python: RunPython, tmp_path: Path
) -> None:
    first = start_python(tmp_path, WAITS_FOR_A_LINE)
    assert first.stdout is not None
    assert first.stdout.readline() == "ready\n"
    second = finished(
        run_python, "[logger.setup('logs') for _ in range(2)]; events(5); logger.close()"
    )
    assert second.stderr.count("WARNING") == 1
    assert "another living process writes as rank 0" in second.stderr
    own = tmp_path / "logs/profile_rank_0.w1.csv"
    assert f"the rows of this one go to {own}" in second.stderr
    assert first.communicate("go\n", timeout=60) == ("", "")
    assert steps_of(tmp_path / "logs/profile_rank_0.csv") == list(range(10))
    assert steps_of(own) == list(range(5))
    assert "another living process" in (tmp_path / "logs/rank_0.w1.log").read_text()
    assert (tmp_path / "logs/rank_0.log").read_text() == ""
    assert not list((tmp_path / "logs").glob("*.journal"))


def test_a_forked_child_that_records_nothing_makes_no_file(
    run_python: RunPython, tmp_path: Path
) -> None:
    finished(
        run_python,
        """
        logger.setup("logs", console=False); events(5)
        for leave in (lambda: os._exit(0), lambda: sys.exit(0)):
            child = os.fork()
            if child == 0:
                leave()
            assert os.waitpid(child, 0)[1] == 0
        """,
    )
    assert names_in(tmp_path / "logs") == CLOSED
    assert steps_of(tmp_path / "logs/profile_rank_0.csv") == list(range(5))


def test_forked_children_write_files_of_their_own_and_share_the_text_log(
    run_python: RunPython, tmp_path: Path
) -> None:
    finished(
        run_python,
        """
        logger.setup("logs", console=False); events(5)
        for number in range(2):
            child = os.fork()
            if child == 0:
                events(7, f"child{number}"); logger.get_logger().info("from child %d", number)
                sys.exit(0)
            assert os.waitpid(child, 0)[1] == 0
        events(5, first=5)
        """,
    )
    assert names_in(tmp_path / "logs") == [
        "profile_rank_0.csv",
        "profile_rank_0.w1.csv",
        "rank_0.heartbeat.json",
        "rank_0.log",
        "rank_0.w1.heartbeat.json",
    ]
    assert steps_of(tmp_path / "logs/profile_rank_0.csv") == list(range(10))
    worker = tmp_path / "logs/profile_rank_0.w1.csv"
    assert steps_of(worker) == []
    assert [steps_of(worker, f"child{number}") for number in range(2)] == [list(range(7))] * 2
    lines = (tmp_path / "logs/rank_0.log").read_text().splitlines()
    assert [line.split("INFO ")[1] for line in lines] == ["from child 0", "from child 1"]


def test_a_fork_in_the_middle_of_everything_does_not_hang_the_child(
    run_python: RunPython, tmp_path: Path
) -> None:
    """Other threads hold the locks of the logger and of the recorder at the time of the fork."""
    finished(
        run_python,
        """
        logger.setup("logs", console=False)
        stop = threading.Event()
        def busy():
            step = 0
            while not stop.is_set():
                logger.instant("busy", step=step); logger.flush(30)
                logger.setup("logs", console=False)
                step += 1
        threads = [threading.Thread(target=busy) for _ in range(3)]
        [t.start() for t in threads]
        for number in range(40):
            child = os.fork()
            if child == 0:
                logger.instant("child", step=number); logger.flush(30)
                logger.get_logger().info("child")
                logger.close()
                os._exit(0)
            assert os.waitpid(child, 0)[1] == 0
        stop.set(); [t.join() for t in threads]
        """,
    )
    assert steps_of(tmp_path / "logs/profile_rank_0.w1.csv", "child") == list(range(40))
    assert not list((tmp_path / "logs").glob("*.journal"))


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_children_of_multiprocessing_write_their_rows(
    run_python: RunPython, tmp_path: Path, method: str
) -> None:
    """No atexit runs in them: neither after a fork, nor under the fork server."""
    script = tmp_path / "main.py"
    script.write_text(
        program(
            f"""
            import multiprocessing
            def work(number):
                if {method!r} != "fork":
                    logger.setup("logs", rank=number + 1, console=False)
                events(9, f"work{{number}}")
            if __name__ == "__main__":
                context = multiprocessing.get_context({method!r})
                logger.setup("logs", console=False); events(5)
                for number in range(2):
                    child = context.Process(target=work, args=(number,))
                    child.start(); child.join()
                    assert child.exitcode == 0
                idle = context.Process(target=print); idle.start(); idle.join()
            """
        )
    )
    done = run_python(str(script))
    assert (done.returncode, done.stderr) == (0, "")
    logs = tmp_path / "logs"
    assert steps_of(logs / "profile_rank_0.csv") == list(range(5))
    for number in range(2):
        path = logs / (
            "profile_rank_0.w1.csv" if method == "fork" else f"profile_rank_{number + 1}.csv"
        )
        assert steps_of(path, f"work{number}") == list(range(9))
    assert not list(logs.glob("*.journal"))
    assert len(list(logs.glob("*.csv"))) == (2 if method == "fork" else 3)


def test_a_logger_sent_to_another_process_is_that_process_own(
    run_python: RunPython, tmp_path: Path
) -> None:
    script = tmp_path / "main.py"
    script.write_text(
        program(
            """
            import multiprocessing
            def work(sent):
                assert sent is GlobalLogger() and not sent.is_set_up
            if __name__ == "__main__":
                logger.setup("logs", console=False)
                child = multiprocessing.get_context("spawn").Process(target=work, args=(logger,))
                child.start(); child.join()
                assert child.exitcode == 0
            """
        )
    )
    done = run_python(str(script))
    assert (done.returncode, done.stderr) == (0, "")


def test_workers_of_a_data_loader_lose_no_row(run_python: RunPython, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    finished(
        run_python,
        """
        from torch.utils.data import DataLoader, Dataset, _utils
        _utils.MP_STATUS_CHECK_INTERVAL = 60.0  # workers that take longer to end are killed
        class Numbers(Dataset):
            def __len__(self):
                return 200
            def __getitem__(self, index):
                logger.instant("load", step=index)
                return index
        logger.setup("logs", console=False); events(1)
        for _ in range(2):
            loader = DataLoader(Numbers(), 10, num_workers=2, multiprocessing_context="fork")
            assert sum(map(len, loader)) == 200
        """,
    )
    steps = [
        step
        for path in (tmp_path / "logs").glob("profile_rank_0*.csv")
        for step in steps_of(path, "load")
    ]
    assert sorted(steps) == sorted([*range(200)] * 2)
    assert not list((tmp_path / "logs").glob("*.journal"))


def test_in_development_mode_nothing_is_complained_about(
    run_python: RunPython, tmp_path: Path
) -> None:
    text = """
    logger.setup("one", console=False); events(10); logger.setup("two", console=False); events(10)
    logger.get_logger().info("text"); logger.close(); logger.setup("one", console=False)
    """
    done = run_python("-X", "dev", "-W", "error", "-c", program(text))
    assert (done.returncode, done.stderr) == (0, "")


def test_a_pool_of_workers_loses_no_row(run_python: RunPython, tmp_path: Path) -> None:
    finished(
        run_python,
        """
        import multiprocessing
        logger.setup("logs", console=False); events(1)
        def work(step):
            logger.instant("work", step=step)
        with multiprocessing.get_context("fork").Pool(3) as pool:
            pool.map(work, range(300), chunksize=1)
            pool.close(); pool.join()
        """,
    )
    steps = [
        step
        for path in (tmp_path / "logs").glob("profile_rank_0*.csv")
        for step in steps_of(path, "work")
    ]
    assert sorted(steps) == list(range(300))


# --- restarts ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "end", ["os.kill(os.getpid(), signal.SIGKILL)", "os._exit(1)", "os.abort()"]
)
def test_a_restart_takes_over_what_a_killed_run_left(
    run_python: RunPython, tmp_path: Path, end: str
) -> None:
    dying = f"""
    import resource; resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    logger.setup("logs", console=False); events(100); logger.flush(30); events(50, first=100)
    timer = _core.Timer("t"); timer.set_step(150)
    timer.start("outer"); timer.start("inner"); timer.stop("inner")
    {end}
    """
    assert run(run_python, dying).returncode != 0
    path = tmp_path / "logs/profile_rank_0.csv"
    assert steps_of(path) == list(range(100))
    journals = list((tmp_path / "logs").glob("*.journal"))
    assert len(journals) == 1
    done = finished(run_python, "logger.setup('logs'); events(10, first=150)")
    assert steps_of(path) == list(range(160))
    kinds = [(r["event_name"], r["event_type"]) for r in rows_of(path) if "tag=t" in r["metadata"]]
    stages = [kind for kind in kinds if not kind[0].startswith("my_utils.")]
    assert sorted(stages) == [("inner", "END"), ("inner", "START"), ("outer", "START")]
    assert names_in(tmp_path / "logs") == CLOSED
    found = re.findall(
        r"INFO took over (\d+) journal\(s\) of earlier runs: (\d+) rows", done.stderr
    )
    assert len(found) == 1
    assert found[0][0] == "1"
    assert int(found[0][1]) >= 53
    assert re.findall(r"attempt=(\d+)", path.read_text()) == ["1", "2"]


SET_UP = "logger.setup('logs', console=False)"
KILL = "os.kill(os.getpid(), signal.SIGKILL)"


@pytest.mark.parametrize(
    ("first", "is_dead"),
    [
        (f"{SET_UP}; events(2); {KILL}", True),
        (f"logger.set_time_offset(-3600.5); {SET_UP}; events(2); {KILL}", True),
        (f"{SET_UP}; events(2)", False),
        (f"{SET_UP}; events(2); logger.setup('other', console=False); {SET_UP}", False),
    ],
    ids=["killed", "killed with a time offset", "ended", "itself"],
)
def test_a_restart_says_when_the_process_before_was_last_alive(
    run_python: RunPython, tmp_path: Path, first: str, is_dead: bool
) -> None:
    began_ns = time.time_ns()
    run(run_python, first)
    ended_ns = time.time_ns()
    finished(run_python, f"{SET_UP}; events(2, first=2)")
    found = re.findall(r"dead_seen_ns=(\d+)", (tmp_path / "logs/profile_rank_0.csv").read_text())
    offset_ns = 3_600_500_000_000 if "offset" in first else 0
    assert len(found) == is_dead
    assert all(began_ns <= int(each) + offset_ns <= ended_ns for each in found)


def test_a_living_forked_child_does_not_keep_a_restart_from_taking_over(
    run_python: RunPython, tmp_path: Path
) -> None:
    """The parent is killed while a worker that recorded nothing lives on, as DataLoaders' do."""
    parent = start_python(
        tmp_path,
        """
        logger.setup("logs", console=False); events(20)
        child = os.fork()
        if child == 0:
            print(os.getpid(), flush=True); sys.stdin.readline(); os._exit(0)
        os.waitpid(child, 0)
        """,
    )
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    parent.kill()
    parent.wait(timeout=60)
    try:
        os.kill(child, 0)
        done = finished(run_python, "logger.setup('logs'); events(5, first=20)")
    finally:
        os.kill(child, signal.SIGKILL)
        parent.communicate(timeout=60)
    assert "another living process" not in done.stderr
    assert steps_of(tmp_path / "logs/profile_rank_0.csv") == list(range(25))


@pytest.mark.parametrize("name", ["local", "logs2", "logs/journals"])
def test_a_journal_elsewhere_is_found_again(
    run_python: RunPython, tmp_path: Path, name: str
) -> None:
    place = tmp_path / name
    text = "logger.setup('logs', console=False, journal_dir={2!r}); events(10, first={0}); {1}"
    run(run_python, text.format(0, "os._exit(1)", name))
    assert [path.suffix for path in place.iterdir()] == [".journal"]
    assert len(list((tmp_path / "logs").glob("*.journal-ref"))) == 1
    finished(run_python, text.format(10, "pass", name))
    assert steps_of(tmp_path / "logs/profile_rank_0.csv") == list(range(20))
    assert list(place.iterdir()) == []
    assert [item for item in names_in(tmp_path / "logs") if item != "journals"] == CLOSED


# --- what can fail -------------------------------------------------------------------------------

GOES_ON = """
logger.setup(sys.argv[1], rank=0, world_size=1)
events(10); logger.flush(30)
logger.get_logger().info("still here")
logger.setup(sys.argv[1], rank=0, world_size=1)
rows = _core.memory_rows().decode()
print(sum(",e,INSTANT," in row for row in rows.splitlines()), logger.csv_path)
"""


@pytest.mark.parametrize(
    ("place", "reason"),
    [
        ("/proc/my_utils_test", "No such file or directory"),
        ("file/below", "Not a directory"),
        ("file", "Not a directory|File exists"),
    ],
)
def test_a_place_that_cannot_be_written_is_one_warning_and_rows_wait_in_memory(
    run_python: RunPython, tmp_path: Path, place: str, reason: str
) -> None:
    (tmp_path / "file").write_text("in the way")
    done = finished(run_python, GOES_ON, place)
    assert done.stdout == "10 None\n"
    warnings = [line for line in done.stderr.splitlines() if "WARNING" in line]
    assert len(warnings) == 1, done.stderr
    assert "cannot open the files of rank 0 in " in warnings[0]
    assert re.search(reason, warnings[0])
    assert "profile rows wait in memory (the newest 8 MiB)" in warnings[0]
    assert "there is no text log; the training goes on" in warnings[0]
    assert "INFO still here" in done.stderr


def test_without_a_console_the_warning_is_shown_all_the_same(
    run_python: RunPython, tmp_path: Path
) -> None:
    done = finished(run_python, "logger.setup('/proc/nowhere', console=False)")
    assert done.stderr.count("cannot open the files of rank 0") == 1


def test_a_read_only_directory(run_python: RunPython, tmp_path: Path) -> None:
    if os.geteuid() == 0:
        pytest.skip("root may write everywhere")
    folder = tmp_path / "logs"
    folder.mkdir(mode=0o555)
    done = finished(run_python, GOES_ON, "logs")
    assert done.stdout == "10 None\n"
    assert done.stderr.count("WARNING") == 1
    assert "Permission denied" in done.stderr


def test_a_current_directory_that_is_gone(run_python: RunPython, tmp_path: Path) -> None:
    text = """
    os.mkdir("gone"); os.chdir("gone"); os.rmdir("../gone")
    logger.setup("logs"); events(10); logger.flush(30)
    logger.get_logger().info("still here")
    """
    done = finished(run_python, text)
    assert done.stderr.count("WARNING") == 1
    assert "INFO still here" in done.stderr


def test_a_file_that_is_no_profile_csv_is_left_alone(run_python: RunPython, tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    logs.mkdir()
    other = logs / "profile_rank_0.csv"
    other.write_text("a,b\n1,2\n")
    done = finished(run_python, GOES_ON, "logs")
    assert done.stdout == "10 None\n"
    assert other.read_text() == "a,b\n1,2\n"
    assert "does not begin with the header of a profile CSV" in done.stderr
    assert "there is no text log" not in done.stderr
    assert "INFO still here" in (logs / "rank_0.log").read_text()


def test_a_failed_move_keeps_the_files_in_use(run_python: RunPython, tmp_path: Path) -> None:
    done = finished(
        run_python,
        """
        logger.setup("logs"); events(5)
        logger.setup("/proc/nowhere"); events(5, first=5)
        logger.get_logger().info("still here")
        """,
    )
    path = tmp_path / "logs/profile_rank_0.csv"
    assert steps_of(path) == list(range(10))
    assert f"profile rows still go to {path}, the text log stays" in done.stderr
    assert "INFO still here" in (tmp_path / "logs/rank_0.log").read_text()


def test_after_a_failure_setup_can_succeed_and_rows_are_not_lost(
    run_python: RunPython, tmp_path: Path
) -> None:
    (tmp_path / "logs").write_text("in the way")
    finished(
        run_python,
        """
        logger.setup("logs"); events(5)
        os.remove("logs")
        logger.setup("logs"); events(5, first=5)
        """,
    )
    assert steps_of(tmp_path / "logs/profile_rank_0.csv") == list(range(10))


def test_a_file_size_limit_is_one_warning_and_whole_rows(
    run_python: RunPython, tmp_path: Path
) -> None:
    """RLIMIT_FSIZE stands for a full disk. The journal lies elsewhere, and was reserved before."""
    done = finished(
        run_python,
        """
        import resource
        logger.setup("logs"); events(10); logger.flush(30)
        size = logger.csv_path.stat().st_size
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        limit = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size + 5000, limit[1]))
        for first in range(10, 1010, 20):
            events(20, first=first); logger.flush(30)
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
        events(10, first=1010); logger.flush(30)
        counts = _core.troubles()
        assert counts["failed_writes"] > 1 and counts["lost_rows"] > 100, counts
        print(counts["lost_rows"])
        """,
    )
    assert done.stderr.count(f"the training goes on ({tmp_path}/logs/profile_rank_0.csv: File") == 1
    steps = steps_of(tmp_path / "logs/profile_rank_0.csv")
    assert steps[:10] == list(range(10))
    assert steps[-10:] == list(range(1010, 1020))
    assert len(steps) == 1020 - int(done.stdout)
    warnings = [line for line in done.stderr.splitlines() if "WARNING" in line]
    assert len([line for line in warnings if "the profile CSV could not be written" in line]) == 1
    assert "File too large" in done.stderr


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 1 MiB."""
    place = tmp_path / "small"
    place.mkdir()
    if shutil.which("mount") is None:
        pytest.skip("no tmpfs can be mounted: mount is not installed")
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(place)],
        check=False,
        capture_output=True,
        text=True,
    )
    if mounted.returncode != 0:
        pytest.skip(f"no tmpfs can be mounted: {mounted.stderr.strip()}")
    yield place
    subprocess.run(["umount", str(place)], check=True)


@pytest.mark.parametrize("filled_kib", [0, 500, 800, 1012, 1016, 1020, 1024])
def test_a_full_disk_at_any_moment(
    run_python: RunPython, small_disk: Path, filled_kib: int
) -> None:
    """Every row is written, lost and counted, or waits in memory; each trouble is told once."""
    (small_disk / "other").write_bytes(bytes(filled_kib * 1024))
    done = finished(
        run_python,
        """
        logger.setup("small/logs")
        for first in range(0, 20000, 100):
            events(100, first=first); logger.flush(30); logger.get_logger().info("step")
        waiting = _core.memory_rows().decode().count(",e,INSTANT,")
        counts = _core.troubles()
        assert counts["dropped_lanes"] == counts["dropped_records"] == 0, counts
        print(json.dumps([waiting, counts["lost_rows"]]))
        """,
    )
    waiting, lost = json.loads(done.stdout)
    path = small_disk / "logs/profile_rank_0.csv"
    written = steps_of(path) if path.exists() and path.stat().st_size else []
    # Rows of the tool itself may be among the lost ones.
    assert 20000 <= len(written) + waiting + lost <= 20010
    assert written == sorted(set(written))
    warnings = [line.split("WARNING ")[1] for line in done.stderr.splitlines() if "WARN" in line]
    assert 1 <= len(warnings) == len(set(warnings)) <= 4, warnings


def test_a_deleted_log_directory_is_made_anew_by_setup(
    run_python: RunPython, tmp_path: Path
) -> None:
    finished(
        run_python,
        """
        import shutil
        logger.setup("logs"); events(5); logger.flush(30)
        shutil.rmtree("logs")
        for first in range(5, 50, 5):
            events(5, first=first); logger.flush(30); logger.get_logger().info("in the void")
        logger.setup("logs"); events(5, first=50)
        logger.get_logger().info("back")
        """,
    )
    assert steps_of(tmp_path / "logs/profile_rank_0.csv")[-5:] == list(range(50, 55))
    assert (tmp_path / "logs/rank_0.log").read_text().endswith("INFO back\n")
    assert names_in(tmp_path / "logs") == CLOSED


def test_a_log_directory_that_is_gone_at_the_end_is_one_warning_with_the_path(
    run_python: RunPython, tmp_path: Path
) -> None:
    done = finished(
        run_python,
        """
        import shutil
        logger.setup("logs"); events(5); logger.flush(30); shutil.rmtree("logs"); events(5)
        """,
    )
    path = tmp_path / "logs/profile_rank_0.csv"
    assert done.stderr.count("WARNING") == 1
    assert "was deleted while it was written; what" in done.stderr
    assert f"unless setup() is called again ({path})" in done.stderr


def test_a_forked_child_reports_its_own_troubles(run_python: RunPython, tmp_path: Path) -> None:
    done = finished(
        run_python,
        """
        logger.setup("logs")
        def stumble():
            logger.instant("long", "k=" + "x" * 40000); logger.flush(30)
        stumble(); stumble()
        child = os.fork()
        if child == 0:
            stumble(); stumble(); sys.exit(0)
        assert os.waitpid(child, 0)[1] == 0
        """,
    )
    assert done.stderr.count("metadata above 32768 bytes was cut") == 2


def test_a_journal_that_has_no_place_is_one_warning(run_python: RunPython, tmp_path: Path) -> None:
    done = finished(
        run_python,
        """
        for _ in range(2):
            logger.setup("logs", journal_dir="/proc/nowhere")
        events(5)
        """,
    )
    assert done.stderr.count("WARNING") == 1
    assert "there is no journal (" in done.stderr
    assert steps_of(tmp_path / "logs/profile_rank_0.csv") == list(range(5))


# --- rotation ------------------------------------------------------------------------------------


def test_parts_rotate_at_their_size_and_the_newest_are_kept(
    run_python: RunPython, tmp_path: Path
) -> None:
    done = finished(
        run_python,
        """
        logger.setup("logs", max_csv_bytes=8192, keep_csv_bytes=40000)
        for first in range(0, 4000, 20):
            events(20, first=first); logger.flush(30)
        print(_core.troubles()["removed_parts"])
        """,
    )
    logs = tmp_path / "logs"
    current = logs / "profile_rank_0.csv"
    parts = sorted(logs.glob("profile_rank_0.part*.csv"))
    assert re.fullmatch(r"profile_rank_0\.part\d{4}\.csv", parts[0].name)
    numbers = [int(path.name[-8:-4]) for path in parts]
    assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
    assert numbers[0] == int(done.stdout) + 1 > 1
    steps = [step for path in [*parts, current] for step in steps_of(path)]
    assert steps == list(range(steps[0], 4000))
    sizes = [path.stat().st_size for path in [*parts, current]]
    assert sum(sizes) <= 40000 + 8192
    assert all(8192 <= size < 8192 + 3000 for size in sizes[:-1])
    for path in [*parts, current]:
        assert rows_of(path)[0]["event_name"] == "my_utils.process"
    warnings = [line for line in done.stderr.splitlines() if "WARNING" in line]
    assert len(warnings) == 1
    assert (
        "oldest parts of the profile CSV were removed to stay under keep_csv_bytes" in warnings[0]
    )


def test_each_part_and_each_directory_says_the_time_offset(
    run_python: RunPython, tmp_path: Path
) -> None:
    finished(
        run_python,
        """
        logger.setup("one", console=False, max_csv_bytes=4096); logger.set_time_offset(2.5)
        for first in range(0, 200, 20):
            events(20, first=first); logger.flush(30)
        logger.setup("two", console=False)
        """,
    )
    files = sorted(tmp_path.glob("*/*.csv"))
    assert len(files) > 4
    for path in files:
        offsets = [r for r in rows_of(path) if r["event_name"] == "my_utils.time_offset"]
        assert [row["metadata"].split(",")[1] for row in offsets] == ["offset_ns=2500000000"]


def test_zero_neither_rotates_nor_removes(run_python: RunPython, tmp_path: Path) -> None:
    finished(
        run_python,
        """
        logger.setup("logs", console=False, max_csv_bytes=0, keep_csv_bytes=0)
        for first in range(0, 2000, 100):
            events(100, first=first); logger.flush(30)
        """,
    )
    assert names_in(tmp_path / "logs") == CLOSED


def test_a_restart_goes_on_with_the_numbers_of_the_parts(
    run_python: RunPython, tmp_path: Path
) -> None:
    for first in (0, 300):
        finished(
            run_python,
            f"""
            logger.setup("logs", console=False, max_csv_bytes=8192)
            for first in range({first}, {first} + 300, 20):
                events(20, first=first); logger.flush(30)
            """,
        )
    logs = tmp_path / "logs"
    files = [*sorted(logs.glob("profile_rank_0.part*.csv")), logs / "profile_rank_0.csv"]
    assert [step for path in files for step in steps_of(path)] == list(range(600))


# --- the background ------------------------------------------------------------------------------


def test_in_the_background_rows_are_written_by_the_end(
    run_python: RunPython, tmp_path: Path
) -> None:
    done = finished(
        run_python,
        """
        logger.setup("logs", console=False, io="background")
        assert _core.output_state()["in_background"]
        for first in range(0, 1000, 100):
            events(100, first=first); logger.flush(30)
        """,
    )
    assert done.stderr == ""
    assert steps_of(tmp_path / "logs/profile_rank_0.csv") == list(range(1000))
    assert names_in(tmp_path / "logs") == CLOSED


@pytest.mark.slow
def test_files_are_the_same_in_a_locale_with_a_decimal_comma(
    run_python: RunPython, tmp_path: Path
) -> None:
    place = tmp_path / "locales/de_DE.UTF-8"
    place.parent.mkdir()
    made = subprocess.run(["localedef", "-i", "de_DE", "-f", "UTF-8", str(place)], check=False)
    if not place.is_dir():
        pytest.skip(f"localedef ended with {made.returncode} (Debian package locales)")
    text = """
    import locale
    locale.setlocale(locale.LC_ALL, "de_DE.UTF-8")
    assert locale.localeconv()["decimal_point"] == ","
    logger.setup("logs", console=False); logger.set_time_offset(-1.5)
    timer = _core.Timer("t"); timer.start("load"); logger.instant("e", step=1)
    os._exit(0)
    """
    finished(run_python, text, env={"LOCPATH": str(place.parent)})
    beat = json.loads((tmp_path / "logs/rank_0.heartbeat.json").read_text(encoding="utf-8"))
    assert beat["time"] > beat["began"] > 1.6e9
    finished(run_python, "logger.setup('logs')")
    rows = rows_of(tmp_path / "logs/profile_rank_0.csv")
    assert all(re.fullmatch(r"\d+\.\d{9}", row["timestamp_unix"]) for row in rows)
