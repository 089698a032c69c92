"""`my_utils why` on runs that hang: real processes, which stand in real lines of Python."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from my_utils.analysis.live import snapshot
from my_utils.analysis.replay.inputs import verdict_of
from my_utils.cli.live import main as live
from my_utils.cli.why import main

from ...conftest import ROOT
from ...support.no_gil import needs_stacks
from ...support.other_users import OTHER, as_root, done_by, folder_for_all
from ...support.schemas import loads_checked

WAIT_S = 60.0

# Ranks that train until step 6, or 399, in which rank 2 stays in its input and the others wait for
# it.
RANK = """
import ctypes, signal, sys, threading, time
ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # die with the parent
from my_utils import GlobalLogger, MyTimer
log_dir, rank, hangs = sys.argv[1], int(sys.argv[2]), False
logger = GlobalLogger()
logger.setup(log_dir, rank=rank, world_size=3, console=False)
timer = MyTimer(tag="train")
def stop_here():
    print("ready", flush=True)
    time.sleep(1e6)
def decode_jpeg():
    if rank == 2 and hangs:
        stop_here()
def all_reduce():
    if hangs:
        stop_here()
steps = 400 if sys.argv[3] == "hangs late" else 7
for step in range(steps):
    hangs = sys.argv[3].startswith("hangs") and step == steps - 1
    timer.set_step(step)
    with timer.time_stage("iter"):
        with timer.time_stage("input"):
            decode_jpeg()
        if steps > 7:
            time.sleep(0.001)
        with timer.time_stage("all_reduce"):
            all_reduce()
if sys.argv[3] == "idles":
    stop_here()
print("ready", flush=True)
"""


class Job:
    """Ranks of one log directory."""

    def __init__(self, log_dir: Path) -> None:
        self.log_dir = log_dir
        self.ranks: list[subprocess.Popen[str]] = []

    def start(self, how: str) -> None:
        for rank in range(3):
            self.ranks.append(
                subprocess.Popen(
                    [sys.executable, "-c", RANK, str(self.log_dir), str(rank), how],
                    env={**os.environ, "PYTHONPATH": str(ROOT)},
                    stdout=subprocess.PIPE,
                    text=True,
                )
            )
        for process in self.ranks:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"

    def wait_until_still(self, seconds: float) -> None:
        """Until every rank has stood still for so long."""
        still: list[float] = []
        while len(still) < len(self.ranks) or min(still) < seconds:
            seen = snapshot(self.log_dir)
            still = [rank["still_s"] or 0.0 for rank in seen["ranks"]]

    def end(self) -> None:
        for process in self.ranks:
            process.kill()
            process.communicate()
        self.ranks.clear()


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    started = Job(tmp_path / "logs")
    yield started
    started.end()


def line_of(text: str) -> int:
    return next(n for n, line in enumerate(RANK.splitlines(), 1) if text in line)


@needs_stacks
def test_the_stacks_of_a_hang_come_first_and_equal_ones_once(
    job: Job, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job.start("hangs")
    job.wait_until_still(0.5)
    capsys.readouterr()
    page = tmp_path / "why.md"
    assert main([str(job.log_dir), "--hung", "0.5", "-o", str(page)]) == 3
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("HANGS since ") and lines[0].endswith(
        ": step 6, in iter > all_reduce, 2 ranks: 0-1"
    )
    here = f"`stop_here` <string>:{line_of('time.sleep')}"
    assert lines[1].startswith("! rank 2") and f"in iter > input, at {here}, since " in lines[1]
    assert [line for line in lines if line.startswith("rank")] == [
        f"ranks 0-1: {here} in iter > all_reduce, step 6",
        f"rank 2: {here} in iter > input, step 6",
    ]
    assert sum("    decode_jpeg  <string>" in line for line in lines) == 1
    assert sum("    all_reduce  <string>" in line for line in lines) == 1
    assert not any("no hang" in line for line in lines)
    assert "    HANGS since " in page.read_text()


@needs_stacks
def test_live_says_where_the_named_rank_is_in_its_code(
    job: Job, capsys: pytest.CaptureFixture[str]
) -> None:
    job.start("hangs")
    job.wait_until_still(0.5)
    capsys.readouterr()
    assert live([str(job.log_dir), "--hung", "0.5"]) == 3
    title, hangs, named, *rest = capsys.readouterr().out.splitlines()
    here = f"`stop_here` <string>:{line_of('time.sleep')}"
    assert hangs.startswith("hangs since ")
    assert named.startswith("! rank 2") and f"in iter > input, at {here}, since " in named
    assert not any("stop_here" in line for line in [title, *rest])


@needs_stacks
def test_a_hang_is_data_too(job: Job, capsys: pytest.CaptureFixture[str]) -> None:
    job.start("hangs")
    job.wait_until_still(0.5)
    capsys.readouterr()
    assert main([str(job.log_dir), "--hung", "0.5", "--json"]) == 3
    hang = loads_checked("why", capsys.readouterr().out)["hang"]
    assert hang["hung"] and [one["rank"] for one in hang["suspects"]] == [2]
    stacks = {
        record["rank"]: [frame["function"] for frame in record["threads"][0]["frames"]]
        for record in hang["stacks"]["records"]
    }
    assert stacks == {
        0: ["stop_here", "all_reduce", "<module>"],
        1: ["stop_here", "all_reduce", "<module>"],
        2: ["stop_here", "decode_jpeg", "<module>"],
    }


def test_without_a_living_process_it_says_so(job: Job, capsys: pytest.CaptureFixture[str]) -> None:
    job.start("hangs")
    job.end()
    status = main([str(job.log_dir)])
    first, *rest = capsys.readouterr().out.splitlines()
    assert first.startswith("ENDED in the middle of its work; none of its processes is alive")
    assert any(line.startswith("! rank 2") and "in iter > input" in line for line in rest)
    assert status == 4  # seven steps are too few for a verdict, and a hang is none
    assert main([str(job.log_dir), "--json"]) == 4
    assert loads_checked("why", capsys.readouterr().out)["hang"]["stacks"] is None


def test_below_a_hang_that_is_over_no_hang_is_said(
    job: Job, capsys: pytest.CaptureFixture[str]
) -> None:
    job.start("hangs late")
    job.wait_until_still(3)  # a heart beats each 2 s, and nobody else knows it later
    job.end()
    capsys.readouterr()
    main([str(job.log_dir), "--hung", "0.5"])
    said = capsys.readouterr().out
    assert "\nhung since " in said
    assert "\nnot timed " in said, said
    assert "no hang" not in said


def test_a_run_that_is_over_hangs_in_nothing(job: Job, capsys: pytest.CaptureFixture[str]) -> None:
    job.start("ends")
    for process in job.ranks:
        process.wait(WAIT_S)
    capsys.readouterr()
    assert main([str(job.log_dir), "--hung", "0.5", "--json"]) == 4
    assert "hang" not in loads_checked("why", capsys.readouterr().out)


def test_ranks_that_all_wait_in_no_stage_hang(job: Job, capsys: pytest.CaptureFixture[str]) -> None:
    """As `live` says: nobody knows what they wait for."""
    job.start("idles")
    job.wait_until_still(0.5)
    capsys.readouterr()
    assert main([str(job.log_dir), "--hung", "0.5", "--json"]) == 3
    hang = loads_checked("why", capsys.readouterr().out)["hang"]
    assert (hang["waiting"], hang["waiting_stack"]) == ([0, 1, 2], [])


def test_a_dump_that_is_a_link_to_itself_hides_no_hang(
    job: Job, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = job.log_dir / "flight_recorder"
    folder.mkdir(parents=True)
    (folder / "dump_0").symlink_to("dump_0")
    job.start("hangs")
    job.wait_until_still(0.5)
    capsys.readouterr()
    assert main([str(job.log_dir), "--hung", "0.5", "--json"]) == 3
    hang = loads_checked("why", capsys.readouterr().out)["hang"]
    assert [one["rank"] for one in hang["suspects"]] == [2]
    (problem,) = hang["flight_recorder"]["problems"]
    assert "symbolic links" in problem["reason"]


def test_a_glob_names_a_run_that_hangs(job: Job, capsys: pytest.CaptureFixture[str]) -> None:
    job.start("hangs")
    job.wait_until_still(0.5)
    capsys.readouterr()
    assert main([f"{job.log_dir.parent}/log?", "--hung", "0.5"]) == 3
    assert capsys.readouterr().out.startswith("HANGS since ")


@as_root
def test_dumps_that_another_user_closed_hide_no_hang() -> None:
    with folder_for_all() as folder:
        job = Job(folder / "logs")
        out = folder / "why.json"

        def asks() -> int:
            return main([str(job.log_dir), "--hung", "0.5", "--quiet", "-o", str(out)])

        try:
            job.start("hangs")
            job.wait_until_still(0.5)
            (dumps := job.log_dir / "flight_recorder").mkdir(mode=0o700)
            assert asks() == 3
            out.unlink()
            done_by(OTHER, asks)
        finally:
            job.end()
        found = loads_checked("why", out.read_text())
    assert [one["rank"] for one in found["hang"]["suspects"]] == [2]
    assert f"{dumps}: not read: Permission denied" in found["notes"]


def test_no_hang_is_said_where_processes_were_looked_at(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    done = """
import sys, time
from my_utils import GlobalLogger, MyTimer
GlobalLogger().setup(sys.argv[1], rank=0, world_size=1, console=False)
timer = MyTimer(tag="train")
for step in range(40):
    timer.set_step(step)
    with timer.time_stage("forward"):
        time.sleep(0.001)
    timer.step()
"""
    logs = tmp_path / "logs"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, "-c", done, str(logs)], env=environment, check=True)

    def says(*paths: Path) -> bool:
        main([str(path) for path in paths])
        return "no hang" in capsys.readouterr().out

    csv = logs / "profile_rank_0.csv"
    copied = tmp_path / "copied"
    copied.mkdir()
    shutil.copy(csv, copied)
    assert says(logs)
    assert not says(csv)
    assert not says(copied)
    assert "no hang" not in str(verdict_of(str(logs)))


def test_a_step_that_is_shorter_than_the_limit_is_no_hang(
    job: Job, capsys: pytest.CaptureFixture[str]
) -> None:
    job.start("hangs")
    assert main([str(job.log_dir), "--json"]) == 4
    assert "hang" not in loads_checked("why", capsys.readouterr().out)


@pytest.mark.parametrize("seconds", ["0", "-1", "nan", "soon"])
def test_wrong_seconds(seconds: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([str(tmp_path), f"--hung={seconds}"])
    assert ended.value.code == 2
    assert f"must be seconds above 0, not '{seconds}'" in capsys.readouterr().err
