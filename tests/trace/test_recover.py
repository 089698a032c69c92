"""Processes that end badly, and what is left of them: every stage that finished is there once, none
twice, no row is torn, and the stages that ran are open.

Each victim writes down, with a system call a line, what it starts and stops; Python's own csv
module reads what was recovered.
"""

from __future__ import annotations

import csv
import io
import mmap
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from my_utils import _core
from my_utils.trace.inputs import Inputs

from ..conftest import ROOT
from ..support.profile_rows import only_opens

pytestmark = pytest.mark.no_torch

VICTIM = """
import os, signal, sys, threading
from my_utils import _core

log_dir, said_path, point, ending = sys.argv[1:]
said = os.open(said_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
timer = _core.Timer("train")
lock = threading.Lock()

def start(name):
    timer.start(name)
    os.write(said, f"start {name}\\n".encode())

def stop(name):
    timer.stop(name)
    os.write(said, f"stop {name}\\n".encode())

def pair(name):
    start(name)
    stop(name)

def end():
    if ending == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif ending == "exit":
        os._exit(3)
    elif ending == "abort":
        os.abort()
    elif ending == "raise":
        raise RuntimeError("the training failed")

def begin(**options):
    _core.open_output(log_dir=log_dir, rank=0, machine="node-a", **options)

def before_the_first_drain():
    begin()
    start("iter")
    pair("forward")
    start("backward")
    end()

def before_setup():
    pair("import")
    start("main")
    begin()
    pair("load")
    end()

def after_a_drain():
    begin()
    pair("forward")
    timer.step()
    end()

def between_two_drains():
    begin()
    start("iter")
    for i in range(5):
        pair(f"layer {i}")
    timer.step()
    for i in range(5, 9):
        pair(f"layer {i}")
    end()

def started_in_the_csv_and_finished_in_the_journal():
    begin()
    start("iter")
    start("forward")
    timer.step()
    stop("forward")
    stop("iter")
    start("next")
    end()

def deep():
    begin()
    for i in range(60):
        start(f"level {i}")
    timer.step()
    for i in reversed(range(50, 60)):
        stop(f"level {i}")
    end()

def after_many_laps_of_the_ring():
    begin()
    start("iter")
    for i in range(30):
        for _ in range(1000):
            pair("short")
        timer.step()
    for _ in range(777):
        pair("short")
    end()

def with_events_over_several_slots():
    begin()
    for i in range(500):
        start("stage")
        _core.log_event("note", "INSTANT", step=i, metadata="text=" + "x" * (37 * i % 1500))
        stop("stage")
        if i % 90 == 0:
            timer.step()
    end()

def on_a_thread_that_is_gone():
    begin()
    thread = threading.Thread(target=lambda: [pair("on a thread") for _ in range(20)])
    thread.start()
    thread.join()
    start("after it")
    end()

def after_a_change_of_the_time_offset():
    begin()
    pair("before")
    _core.set_time_offset_ns(5_000_000_000)
    pair("after")
    end()

def in_a_new_part_of_the_csv():
    begin(max_csv_bytes=4096)
    start("iter")
    for i in range(100):
        pair("stage")
        timer.step()
    pair("stage")
    end()

def with_names_beyond_the_table():
    begin()
    start("iter")
    for i in range(5000):
        pair(f"name {i}")
        if i % 1000 == 0:
            timer.step()
    end()

globals()[point]()
"""

POINTS = [line[4:-3] for line in VICTIM.splitlines() if line.startswith("def ")]
POINTS = [p for p in POINTS if "(" not in p and p not in ("end", "pair")]
ENDINGS = {"kill": -signal.SIGKILL, "exit": 3, "abort": -signal.SIGABRT, "raise": 1}


@dataclass
class Said:
    """What a victim wrote down."""

    finished: Counter[str] = field(default_factory=Counter)
    open: Counter[str] = field(default_factory=Counter)


def read_said(path: Path) -> Said:
    said = Said()
    for line in path.read_text(encoding="utf-8").splitlines():
        verb, name = line.split(" ", 1)
        said.open[name] += 1 if verb == "start" else -1
        said.finished[name] += verb == "stop"
    said.open += Counter()
    said.finished += Counter()
    return said


@dataclass
class Stages:
    """What rows say, with each rule of the file checked on the way."""

    finished: Counter[str] = field(default_factory=Counter)
    open: Counter[str] = field(default_factory=Counter)
    events: int = 0


def parse_stages(*texts: bytes) -> Stages:
    """Of one file after another."""
    stages = Stages()
    started: dict[str, dict[str, str]] = {}
    ended: set[str] = set()
    for text in texts:
        assert text.endswith(b"\n")
        for row in csv.DictReader(io.StringIO(text.decode("utf-8")), strict=True):
            assert None not in row and None not in row.values(), f"torn: {row}"
            if row["event_type"] not in ("START", "END"):
                stages.events += not row["event_name"].startswith("my_utils.")
                continue
            if only_opens(row):
                continue
            pairs = dict(pair.split("=", 1) for pair in row["metadata"].split(","))
            node = pairs["node_id"]
            if row["event_type"] == "START":
                assert node not in started or "repeated" in pairs, f"started twice: {row}"
                assert pairs["parent_id"] == "0" or pairs["parent_id"] in started, f"orphan: {row}"
                started[node] = row
                continue
            assert node in started and node not in ended, f"not started, or ended twice: {row}"
            assert started[node]["event_name"] == row["event_name"]
            assert float(row["duration_ms"]) >= 0
            ended.add(node)
            stages.finished[row["event_name"]] += 1
    stages.open.update(row["event_name"] for node, row in started.items() if node not in ended)
    return stages


def run(code: str, *arguments: object) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        timeout=60,
        check=False,
    )


def run_victim(folder: Path, point: str, ending: str) -> Said:
    said = folder / "said"
    said.unlink(missing_ok=True)
    done = run(VICTIM, folder / "logs", said, point, ending)
    assert done.returncode == ENDINGS[ending], done.stderr.decode()
    return read_said(said)


def parts_of(logs: Path) -> list[bytes]:
    return [path.read_bytes() for path in sorted(logs.glob("profile_rank_0.part*.csv"))]


def recovered_files(logs: Path) -> list[bytes]:
    """The parts, and the current one as the journal completes it."""
    journals = list(logs.glob("*.journal"))
    if not journals:  # the process ended in good order after all
        return [*parts_of(logs), (logs / "profile_rank_0.csv").read_bytes()]
    (journal,) = journals
    path, size, rows = _core.recover_rows(journal)
    assert path == str(logs / "profile_rank_0.csv")
    return [*parts_of(logs), Path(path).read_bytes()[:size] + rows]


@pytest.mark.parametrize("ending", ENDINGS)
def test_every_way_to_end(tmp_path: Path, ending: str) -> None:
    said = run_victim(tmp_path, "between_two_drains", ending)
    stages = parse_stages(*recovered_files(tmp_path / "logs"))
    assert stages.finished == said.finished
    assert stages.open == said.open


@pytest.mark.parametrize("point", POINTS)
def test_every_point_to_be_killed_at(tmp_path: Path, point: str) -> None:
    said = run_victim(tmp_path, point, "kill")
    logs = tmp_path / "logs"
    stages = parse_stages(*recovered_files(logs))
    assert stages.finished == said.finished
    assert stages.open == said.open
    assert stages.events == (500 if point == "with_events_over_several_slots" else 0)


def test_the_points_are_all_there() -> None:
    assert len(POINTS) == 12


@pytest.mark.parametrize("point", POINTS)
def test_the_next_attempt_writes_it_into_the_csv(tmp_path: Path, point: str) -> None:
    said = run_victim(tmp_path, point, "kill")
    again = run_victim(tmp_path, "after_a_drain", "exit")
    logs = tmp_path / "logs"
    (journal,) = logs.glob("*.journal")
    assert _core.read_journal(journal)["attempt"] == 2
    stages = parse_stages(*recovered_files(logs))
    assert stages.finished == said.finished + again.finished
    assert stages.open == said.open


def test_recovery_changes_nothing(tmp_path: Path) -> None:
    run_victim(tmp_path, "between_two_drains", "kill")
    logs = tmp_path / "logs"
    before = {path.name: path.read_bytes() for path in logs.iterdir()}
    (journal,) = logs.glob("*.journal")
    assert _core.recover_rows(journal) == _core.recover_rows(str(journal))
    assert {path.name: path.read_bytes() for path in logs.iterdir()} == before


def test_rows_that_were_written_and_not_committed_are_not_doubled(tmp_path: Path) -> None:
    """A kill between the write of a drain and its commit leaves rows, or half of one, that the
    journal has as well."""
    said = run_victim(tmp_path, "between_two_drains", "kill")
    logs = tmp_path / "logs"
    (journal,) = logs.glob("*.journal")
    _, size, rows = _core.recover_rows(journal)
    profile = logs / "profile_rank_0.csv"
    for written in (rows, rows[: len(rows) // 2], rows[:-1]):
        os.truncate(profile, size)
        with profile.open("ab") as file:
            file.write(written)
        stages = parse_stages(*recovered_files(logs))
        assert (stages.finished, stages.open) == (said.finished, said.open)
    again = run_victim(tmp_path, "after_a_drain", "exit")
    stages = parse_stages(*recovered_files(logs))
    assert stages.finished == said.finished + again.finished


def test_an_old_journal_does_not_take_later_rows_with_it(tmp_path: Path) -> None:
    """It lay out of reach, on another node, while the job went on and wrote to the same CSV."""
    logs, away = tmp_path / "logs", tmp_path / "away"
    first = run_victim(tmp_path, "between_two_drains", "kill")
    (journal,) = logs.glob("*.journal")
    shutil.move(journal, away)
    second = run_victim(tmp_path, "deep", "kill")
    shutil.move(away, journal)
    path, size, _ = _core.recover_rows(journal)
    assert path is not None
    assert size == Path(path).stat().st_size  # all of the CSV stands
    third = run_victim(tmp_path, "after_a_drain", "exit")
    stages = parse_stages(*recovered_files(logs))
    assert stages.finished == first.finished + second.finished + third.finished
    assert stages.open == first.open + second.open


def test_a_csv_that_was_deleted(tmp_path: Path) -> None:
    run_victim(tmp_path, "started_in_the_csv_and_finished_in_the_journal", "kill")
    logs = tmp_path / "logs"
    (journal,) = logs.glob("*.journal")
    (logs / "profile_rank_0.csv").unlink()
    path, size, rows = _core.recover_rows(journal)
    assert (path, size) == (None, 0)
    assert [line.split(b",")[4:6] for line in rows.splitlines()] == [
        [b"forward", b"END"],
        [b"iter", b"END"],
        [b"next", b"START"],
    ]


def test_a_journal_elsewhere(tmp_path: Path) -> None:
    program = (
        "import os, sys\nfrom my_utils import _core\n"
        "_core.open_output(log_dir=sys.argv[1], journal_dir=sys.argv[2])\n"
        "timer = _core.Timer()\ntimer.start('iter')\ntimer.step()\n"
        "with timer.time_stage('forward'): pass\n"
        "os._exit(0)"
    )
    logs, elsewhere = tmp_path / "logs", tmp_path / "elsewhere"
    elsewhere.mkdir()
    assert run(program, logs, elsewhere).returncode == 0
    (journal,) = elsewhere.glob("*.journal")
    path, size, rows = _core.recover_rows(journal)
    assert path == str(logs / "profile_rank_0.csv")
    stages = parse_stages(Path(path).read_bytes()[:size] + rows)
    assert (dict(stages.finished), dict(stages.open)) == ({"forward": 1}, {"iter": 1})
    assert run(program, logs, elsewhere).returncode == 0
    stages = parse_stages((logs / "profile_rank_0.csv").read_bytes())
    assert stages.finished["forward"] == 1
    assert not journal.exists()


def test_a_forked_worker_that_is_killed(tmp_path: Path) -> None:
    program = """
import os, signal, sys
from my_utils import _core
_core.open_output(log_dir=sys.argv[1])
timer = _core.Timer("data")
timer.start("parent")
child = os.fork()
if child == 0:
    with timer.time_stage("load"):
        pass
    timer.start("decode")
    os.kill(os.getpid(), signal.SIGKILL)
os.waitpid(child, 0)
timer.stop("parent")
_core.close_output()
"""
    done = run(program, tmp_path)
    assert done.returncode == 0, done.stderr.decode()
    parent = parse_stages((tmp_path / "profile_rank_0.csv").read_bytes())
    assert (dict(parent.finished), dict(parent.open)) == ({"parent": 1}, {})
    (journal,) = tmp_path.glob("*.journal")
    path, size, rows = _core.recover_rows(journal)
    assert path == str(tmp_path / "profile_rank_0.w1.csv")
    worker = parse_stages(Path(path).read_bytes()[:size] + rows)
    assert (dict(worker.finished), dict(worker.open)) == ({"load": 1}, {"decode": 1})


def test_looking_up_the_file_of_a_journal_does_not_take_longer_with_more_ranks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = """
import os, sys
from my_utils import _core
for rank in range(int(sys.argv[2])):
    if os.fork() == 0:
        _core.open_output(log_dir=sys.argv[1], rank=rank, world_size=int(sys.argv[2]))
        with _core.Timer("data").time_stage("load"):
            pass
        os._exit(0)
    os.wait()
"""
    resolve = os.path.realpath
    calls = 0

    def counted(*arguments: Any, **options: Any) -> str:
        nonlocal calls
        calls += 1
        return str(resolve(*arguments, **options))

    monkeypatch.setattr(os.path, "realpath", counted)
    of_a_rank = []
    for ranks in (2, 12):
        logs = tmp_path / str(ranks)
        assert run(program, logs, ranks).returncode == 0
        inputs, calls = Inputs(rank=None, recover=True), 0
        inputs.add(str(logs))
        assert [len(one.parts) for one in inputs.file_sets(None)] == [2] * ranks
        of_a_rank.append(calls / ranks)
    assert of_a_rank[0] == of_a_rank[1] > 0


BUSY = """
import mmap, os, sys, threading, time
from my_utils import _core

log_dir, counts_path, threads, pause_s = *sys.argv[1:3], int(sys.argv[3]), float(sys.argv[4])
counts = mmap.mmap(os.open(counts_path, os.O_RDWR), 4096)
_core.open_output(log_dir=log_dir)
timer = _core.Timer("busy")

def work(number):
    for done in range(1, 20_001):  # should nobody be there to kill it for long
        timer.start(f"outer {number}")
        timer.start(f"inner {number}")
        timer.stop(f"inner {number}")
        timer.stop(f"outer {number}")
        counts[8 * number : 8 * number + 8] = done.to_bytes(8, "little")
        if done % 50 == 0:
            timer.step()
            time.sleep(pause_s)
    time.sleep(20)

for number in range(threads):
    threading.Thread(target=work, args=(number,)).start()
"""


@pytest.mark.parametrize("threads", [1, 4])
def test_killed_at_random_moments(tmp_path: Path, threads: int) -> None:
    """From outside, in the middle of whatever it does; what it counted is there."""
    chance = random.Random(threads)
    for attempt in range(5):
        logs, counts_path = tmp_path / f"logs-{attempt}", tmp_path / "counts"
        counts_path.write_bytes(bytes(4096))
        process = subprocess.Popen(
            [sys.executable, "-c", BUSY, str(logs), str(counts_path), str(threads), "0"],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
        with counts_path.open("rb") as file:
            counts = mmap.mmap(file.fileno(), 4096, access=mmap.ACCESS_READ)
        while int.from_bytes(counts[0:8], "little") < 100:
            assert process.poll() is None
            time.sleep(0.001)
        time.sleep(chance.uniform(0, 0.05))
        process.kill()
        process.wait()
        stages = parse_stages(*recovered_files(logs))
        for number in range(threads):
            counted = int.from_bytes(counts[8 * number : 8 * number + 8], "little")
            for name in (f"outer {number}", f"inner {number}"):
                assert stages.finished[name] - counted in (0, 1)
                assert stages.open[name] <= 1


def test_a_process_that_lives(tmp_path: Path) -> None:
    """Read while it goes on: a whole moment, and the process does not notice."""
    counts_path = tmp_path / "counts"
    counts_path.write_bytes(bytes(4096))
    logs = tmp_path / "logs"
    process = subprocess.Popen(
        [sys.executable, "-c", BUSY, str(logs), str(counts_path), "2", "0.02"],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    try:
        while int.from_bytes(counts_path.read_bytes()[:8], "little") < 100:
            assert process.poll() is None
            time.sleep(0.001)
        seen = 0
        for _ in range(5):
            stages = parse_stages(*recovered_files(logs))
            assert stages.finished.total() >= seen
            assert stages.finished["inner 0"] - stages.finished["outer 0"] in (0, 1)
            seen = stages.finished.total()
    finally:
        process.kill()
        process.wait()
