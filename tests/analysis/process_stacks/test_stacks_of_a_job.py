"""Stacks of a job that runs, asked for from outside: ranks that hang are real processes."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from my_utils.analysis.process_stacks import request
from my_utils.analysis.process_stacks.request import job_stacks, request_stacks, wait_for_stacks
from my_utils.cli.live import main as live_main
from my_utils.profilers.capture.on_demand.control_file import add_stacks, captures_folder, new_id

from ...conftest import ROOT
from ...support.no_gil import needs_stacks
from ...support.other_users import OTHER, as_root, done_by, folder_for_all
from ...support.schemas import loads_checked

pytestmark = needs_stacks

WAIT_S = 120.0  # much more than it takes

# A rank that hangs in its stage "input": in a wait, or in C with the interpreter's lock held.
HANGS = """
import ctypes, signal, sys, threading, time
ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # die with the parent
from my_utils import GlobalLogger, MyTimer
log_dir, rank, how = sys.argv[1:]
GlobalLogger().setup(log_dir, rank=int(rank), world_size=4, console=False)
timer = MyTimer(tag="train")
def prefetch(secret="a value that nobody reads"):
    threading.Event().wait()
def decode_jpeg():
    print("ready", flush=True)
    ctypes.PyDLL(None).pause()
def all_reduce():
    print("ready", flush=True)
    time.sleep(1e6)
def next_batch():
    if how == "lock":
        decode_jpeg()
    else:
        all_reduce()
threading.Thread(target=prefetch, daemon=True).start()
timer.set_step(7)
with timer.time_stage("input"):
    next_batch()
"""


def line_of(text: str) -> int:
    """In the script of the ranks."""
    return next(n for n, line in enumerate(HANGS.splitlines(), 1) if text in line)


class Job:
    def __init__(self, log_dir: Path) -> None:
        self.log_dir = log_dir
        self.ranks: list[subprocess.Popen[str]] = []

    def start(self, rank: int, how: str = "wait", **env: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-c", HANGS, str(self.log_dir), str(rank), how],
            env={**os.environ, "PYTHONPATH": str(ROOT), **env},
            stdout=subprocess.PIPE,
            text=True,
        )
        self.ranks.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        return process

    def end(self) -> None:
        for process in self.ranks:
            process.kill()
            process.communicate()


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    started = Job(tmp_path / "logs")
    yield started
    started.end()


def test_a_rank_that_holds_the_interpreters_lock_answers(job: Job) -> None:
    process = job.start(0, "lock")
    found = job_stacks(job.log_dir, timeout_s=WAIT_S)
    assert found.missing == {}
    [record] = found.records
    assert (record.rank, record.label, record.pid) == (0, "rank_0", process.pid)
    main, *others = record.threads()
    assert main.tid == process.pid
    assert [frame.function for frame in main.frames] == ["decode_jpeg", "next_batch", "<module>"]
    assert not main.torn
    functions = {frame.function for thread in others for frame in thread.frames}
    assert "prefetch" in functions
    # The answer was read and is gone; no value of a local stands in what a rank writes.
    assert list((job.log_dir / "captures").iterdir()) == []


def test_no_value_of_a_local_is_written(job: Job) -> None:
    job.start(0)
    id = request_stacks(job.log_dir, seconds=0.2, hz=50)  # a profile's file stays
    [record] = wait_for_stacks(job.log_dir, id, timeout_s=WAIT_S).records
    [path] = (job.log_dir / "captures").iterdir()
    text = path.read_text()
    assert "prefetch" in text and "nobody reads" not in text
    assert 1 <= record.rounds <= 10
    assert len(record.samples) >= 2 * record.rounds - 1


def test_stacks_are_written_through_no_link(job: Job, tmp_path: Path) -> None:
    job.start(0)
    victim = tmp_path / "victim"
    victim.write_text("dear")
    folder = captures_folder(job.log_dir)
    folder.mkdir(exist_ok=True)
    id = new_id()
    (folder / f"{id}__rank_0.stacks.json.tmp").symlink_to(victim)
    add_stacks(job.log_dir, f"{id} * 0 100")
    assert len(wait_for_stacks(job.log_dir, id, timeout_s=WAIT_S).records) == 1
    assert victim.read_text() == "dear"


@as_root
def test_answers_in_a_folder_of_another_user_are_read() -> None:
    """They stay there, as only its owner removes them."""
    with folder_for_all() as folder:
        job = Job(folder / "logs")
        try:
            job.start(0)
            assert [record.rank for record in job_stacks(job.log_dir).records] == [0]
            id = request_stacks(job.log_dir)

            def reads() -> None:
                stacks = wait_for_stacks(job.log_dir, id, timeout_s=WAIT_S / 4)
                assert [record.rank for record in stacks.records] == [0], stacks.missing

            done_by(OTHER, reads)
        finally:
            job.end()


def test_capture_switched_off_covers_stacks(job: Job) -> None:
    job.start(0)
    job.start(1, MY_UTILS_CAPTURE="0")
    id = request_stacks(job.log_dir)
    found = wait_for_stacks(job.log_dir, id, [0], timeout_s=WAIT_S)
    assert [record.rank for record in found.records] == [0]
    later = wait_for_stacks(job.log_dir, id, [1], timeout_s=2.0)
    assert later.records == []
    assert "MY_UTILS_CAPTURE=0" in later.missing["rank_1"]


def test_a_request_that_is_older_than_the_process_is_not_served(job: Job) -> None:
    job.start(0)
    first = request_stacks(job.log_dir)
    assert len(wait_for_stacks(job.log_dir, first, [0], timeout_s=WAIT_S).records) == 1
    job.start(1)
    second = request_stacks(job.log_dir, ranks=[1])
    assert len(wait_for_stacks(job.log_dir, second, [1], timeout_s=WAIT_S).records) == 1
    assert list((job.log_dir / "captures").iterdir()) == []


# A rank that steps until it finds a file, and then says what of ours its steps have loaded.
STEPS = """
import ctypes, os, signal, sys, time
ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # die with the parent
from my_utils import GlobalLogger, MyTimer
log_dir, end = sys.argv[1:]
GlobalLogger().setup(log_dir, rank=0, world_size=1, console=False)
timer = MyTimer(tag="train")
def step(number):
    timer.set_step(number)
    with timer.time_stage("input"):
        time.sleep(0.001)
for number in range(20):
    step(number)
before = set(sys.modules)
print("ready", flush=True)
while not os.path.exists(end):
    step(number := number + 1)
step(number + 1)
print([name for name in set(sys.modules) - before if "my_utils" in name])
"""


def test_a_request_for_stacks_costs_the_training_nothing(tmp_path: Path) -> None:
    """Its steps do not load what reads requests for captures."""
    logs, end = tmp_path / "logs", tmp_path / "end"
    rank = subprocess.Popen(
        [sys.executable, "-c", STEPS, str(logs), str(end)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert rank.stdout is not None
    try:
        assert rank.stdout.readline() == "ready\n"
        assert len(job_stacks(logs, timeout_s=WAIT_S).records) == 1
        end.touch()
        said, _ = rank.communicate(timeout=WAIT_S)
    finally:
        rank.kill()
    assert said == "[]\n"


def test_live_shows_equal_stacks_once(job: Job, capsys: pytest.CaptureFixture[str]) -> None:
    for rank in range(3):
        job.start(rank)
    job.start(3, "lock")
    live_main([str(job.log_dir), "--once", "--stacks"])
    lines = capsys.readouterr().out.splitlines()
    heads = lines[lines.index("stacks:") + 1 :]
    assert [line for line in heads if line.startswith("rank")] == [
        f"ranks 0-2: `all_reduce` <string>:{line_of('time.sleep')} in input, step 7",
        f"rank 3: `decode_jpeg` <string>:{line_of('PyDLL')} in input, step 7",
    ]
    assert sum("next_batch" in line for line in heads) == 2


def test_live_gives_stacks_as_json(job: Job, capsys: pytest.CaptureFixture[str]) -> None:
    job.start(0)
    live_main([str(job.log_dir), "--once", "--stacks", "--json"])
    found = loads_checked("live", capsys.readouterr().out)["stacks"]
    [record] = found["records"]
    names = [frame["function"] for frame in record["threads"][0]["frames"]]
    assert names == ["all_reduce", "next_batch", "<module>"]
    assert found["missing"] == {}


@pytest.mark.slow
def test_live_waits_once_for_all_directories(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    jobs = [Job(tmp_path / name) for name in ("a", "b", "c")]
    try:
        for rank, job in enumerate(jobs):
            job.start(rank, MY_UTILS_CAPTURE="0")  # does not answer
        began_s = time.monotonic()
        live_main([*(str(job.log_dir) for job in jobs), "--once", "--stacks", "--json"])
        assert time.monotonic() - began_s < 3 * request.WAIT_S
    finally:
        for job in jobs:
            job.end()
    found = loads_checked("live", capsys.readouterr().out)["stacks"]
    assert found["records"] == [] and set(found["missing"]) == {"rank_0", "rank_1", "rank_2"}


@pytest.mark.parametrize(
    ("argument", "value", "message"),
    [
        ("hz", 0, "hz must be an int from 1 to 1000, not 0"),
        ("hz", 1.5, "hz must be an int from 1 to 1000, not 1.5"),
        ("seconds", -1.0, "seconds"),
        ("ranks", "x", "ranks"),
    ],
)
def test_wrong_arguments(tmp_path: Path, argument: str, value: object, message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        request_stacks(tmp_path, **{argument: value})  # type: ignore[arg-type]
