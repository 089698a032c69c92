"""`python -m my_utils live` on real processes: running, stopped, killed, ended, elsewhere."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import pytest

from my_utils import _core
from my_utils.analysis import live
from my_utils.cli.live import EXIT_FINE, EXIT_NOTHING, EXIT_SUSPECTS, EXIT_USAGE

from ...conftest import ROOT, RunPython
from ...support.live_ranks import Start, Started, beat, kill, tell_to_close, wait_until, write_beats
from ...support.schemas import loads_checked

snapshot: Any = live.snapshot  # without the types of its keys

pytestmark = pytest.mark.no_torch

LONG_S = 600.0  # within which no rank counts as silent, wherever the machine stands still
VERSION_AT = 8  # bytes into a journal, as csrc/engine/journal/journal_format.h has it


@pytest.fixture
def start_rank(tmp_path: Path) -> Iterator[Start]:
    started = Started(tmp_path)
    yield started
    started.end()


def one(data: dict[str, Any], rank: int) -> dict[str, Any]:
    (found,) = (item for item in data["ranks"] if item["rank"] == rank)
    return dict(found)


def one_of(folder: Path, rank: int) -> dict[str, Any]:
    return one(snapshot(folder, stuck_after_s=LONG_S), rank)


def show(run_python: RunPython, *arguments: object) -> subprocess.CompletedProcess[str]:
    return run_python("-m", "my_utils", "live", *map(str, arguments))


FOREIGN = "not a heartbeat of my_utils"


class TestWhatItShows:
    def test_a_running_and_a_dead_rank(
        self, tmp_path: Path, start_rank: Start, run_python: RunPython
    ) -> None:
        before = time.time_ns()
        kill(start_rank(0, 7, "iter,data"))
        start_rank(1, 8, "iter,backward,all_reduce")
        done = show(run_python, tmp_path, "--once", "--json", "--stuck-after", LONG_S)
        data = loads_checked("live", done.stdout)
        assert done.returncode == EXIT_SUSPECTS
        assert data["version"] == 1
        assert (data["missing_ranks"], data["problems"]) == ([], [])
        assert [(r["rank"], r["state"], r["step"]) for r in data["ranks"]] == [
            (0, "dead", 7),
            (1, "running", 8),
        ]
        running = one(data, 1)
        assert running["source"] == "journal"
        assert (running["host"], running["world_size"], running["label"]) == ("node-a", 2, "rank_1")
        assert running["stack"] == ["iter", "backward", "all_reduce"]
        (thread,) = running["threads"]
        assert (thread["name"], thread["tag"]) == ("MainThread", "train")
        times = [stage["since_ns"] for stage in thread["open"]]
        moments = [before, *times, time.time_ns()]
        assert moments == sorted(moments)
        assert [stage["name"] for stage in thread["last"]] == ["warm up"]
        assert 0 < thread["last"][0]["duration_ms"] < 60_000
        assert [suspect["label"] for suspect in data["suspects"]] == ["rank_0"]

    def test_the_table_for_people(
        self, tmp_path: Path, start_rank: Start, run_python: RunPython
    ) -> None:
        process = start_rank(0, 7, "iter,data")
        start_rank(1, 8, "iter,all_reduce")
        kill(process)
        done = show(run_python, tmp_path, "--once", "--stuck-after", LONG_S)
        lines = done.stdout.splitlines()
        assert lines[0].endswith("1 running, 1 dead")
        (dead,) = (line for line in lines if line.startswith("! 0"))
        assert "dead" in dead and "iter > data" in dead and "after warm up" in dead
        (running,) = (line for line in lines if line.startswith("  1"))
        assert "running" in running and "iter > all_reduce" in running
        assert any(
            line.startswith("! rank 0: its process is gone and did not exit cleanly")
            for line in lines
        )
        assert "\x1b" not in done.stdout

    def test_a_stopped_process_is_silent(self, tmp_path: Path, start_rank: Start) -> None:
        process = start_rank(0, 1, "iter")
        wait_until(lambda: one(snapshot(tmp_path), 0)["beat_age_s"] is not None)
        os.kill(process.pid, signal.SIGSTOP)
        wait_until(lambda: snapshot(tmp_path, stuck_after_s=1)["ranks"][0]["state"] == "silent")
        data = snapshot(tmp_path, stuck_after_s=1)
        assert data["suspects"][0]["reasons"][0].startswith("no sign of life for ")
        os.kill(process.pid, signal.SIGCONT)
        wait_until(lambda: snapshot(tmp_path, stuck_after_s=1)["ranks"][0]["state"] == "running")

    def test_a_rank_that_ended_in_good_order(
        self, tmp_path: Path, start_rank: Start, run_python: RunPython
    ) -> None:
        tell_to_close(start_rank(0, 3, "iter"))
        tell_to_close(start_rank(1, 3, "iter"))
        done = show(run_python, tmp_path, "--once", "--json")
        data = loads_checked("live", done.stdout)
        assert done.returncode == EXIT_FINE
        assert [rank["state"] for rank in data["ranks"]] == ["closed", "closed"]
        assert data["suspects"] == []

    def test_the_newest_of_two_attempts_counts(self, tmp_path: Path, start_rank: Start) -> None:
        first = start_rank(0, 5, "iter,old")
        dead = tmp_path / "kept"
        dead.mkdir()
        kill(first)
        (journal,) = tmp_path.glob("*.journal")
        shutil.copy(journal, dead)
        start_rank(0, 6, "iter,new")
        shutil.copy(dead / journal.name, tmp_path)
        rank = one_of(tmp_path, 0)
        assert (rank["state"], rank["attempt"]) == ("running", 2)
        assert rank["stack"] == ["iter", "new"]

    def test_chosen_ranks_only(self, tmp_path: Path, start_rank: Start) -> None:
        for rank in range(2):
            start_rank(rank, 1, "iter")
        data = snapshot(tmp_path, ranks={1, 5})
        assert [rank["rank"] for rank in data["ranks"]] == [1]
        assert data["missing_ranks"] == []

    def test_a_rank_without_a_file_is_missing(self, tmp_path: Path, start_rank: Start) -> None:
        start_rank(1, 1, "iter")
        assert snapshot(tmp_path)["missing_ranks"] == [0]

    def test_names_do_not_steer_the_terminal(
        self, tmp_path: Path, start_rank: Start, run_python: RunPython
    ) -> None:
        start_rank(0, 1, "red \x1b[31m\x07")
        done = show(run_python, tmp_path, "--once")
        assert r"red \x1b[31m\x07" in done.stdout
        assert "\x1b" not in done.stdout and "\x07" not in done.stdout


class TestOtherHosts:
    def test_a_heartbeat_stands_in_for_a_journal_elsewhere(
        self, tmp_path: Path, start_rank: Start
    ) -> None:
        logs, elsewhere, seen = tmp_path / "logs", tmp_path / "local", tmp_path / "seen"
        elsewhere.mkdir()
        start_rank(0, 4, "iter,data", log_dir=logs, journal_dir=str(elsewhere))
        heartbeat = logs / "rank_0.heartbeat.json"
        wait_until(lambda: "data" in heartbeat.read_text(encoding="utf-8"))
        here = one(snapshot(logs), 0)
        assert (here["source"], here["stack"]) == ("journal", ["iter", "data"])

        (pointer,) = logs.glob("*.journal-ref")
        seen.mkdir()
        before = time.time()
        shutil.copy(heartbeat, seen)
        target = pointer.read_text(encoding="utf-8").replace("/local/", "/other-host/")
        (seen / pointer.name).write_text(target, encoding="utf-8")
        data = snapshot(seen, stuck_after_s=LONG_S)
        there = one(data, 0)
        assert data["problems"] == []
        assert (there["source"], there["state"]) == ("heartbeat", "running")
        assert (there["step"], there["stack"]) == (4, ["iter", "data"])
        for stage, same in zip(
            here["threads"][0]["open"], there["threads"][0]["open"], strict=True
        ):
            assert abs(stage["since_ns"] - same["since_ns"]) < 10_000
        assert 0 <= there["beat_age_s"] < time.time() - before + 1

    def test_a_journal_of_another_boot_is_not_called_dead(
        self, tmp_path: Path, start_rank: Start
    ) -> None:
        process = start_rank(0, 4, "iter")
        heartbeat = tmp_path / "rank_0.heartbeat.json"
        wait_until(lambda: "iter" in heartbeat.read_text(encoding="utf-8"))
        kill(process)
        (journal,) = tmp_path.glob("*.journal")
        boot_id = Path("/proc/sys/kernel/random/boot_id").read_bytes().strip()
        with journal.open("r+b") as file:
            at = file.read(8192).index(boot_id)
            file.seek(at)
            file.write(b"0" * len(boot_id))
        rank = one(snapshot(tmp_path), 0)
        assert rank["state"] in ("running", "silent")
        assert rank["stack"] == ["iter"]


def suspects_of(folder: Path) -> list[tuple[int, list[str]]]:
    return [(item["rank"], item["reasons"]) for item in snapshot(folder)["suspects"]]


class TestWhoHoldsTheRunUp:
    def test_the_one_that_does_not_wait_where_the_others_do(self, tmp_path: Path) -> None:
        write_beats(tmp_path, *(beat(r, 9, "iter", "all_reduce") for r in (0, 1, 3)))
        write_beats(tmp_path, beat(2, 9, "iter", "data"))
        reason = "in iter > data while 3 of 4 ranks wait in iter > all_reduce"
        assert suspects_of(tmp_path) == [(2, [reason])]

    def test_the_one_that_is_behind(self, tmp_path: Path) -> None:
        write_beats(tmp_path, *(beat(r, 12, "iter", "all_reduce") for r in (0, 1, 2)))
        write_beats(tmp_path, beat(3, 10, "iter", "all_reduce"))
        reason = "2 steps behind the furthest rank, which is at 12"
        assert suspects_of(tmp_path) == [(3, [reason])]

    def test_one_step_behind_for_a_moment_is_nothing(self, tmp_path: Path) -> None:
        write_beats(tmp_path, beat(0, 12, "iter", ago_s=0.1), beat(1, 11, "iter", ago_s=0.2))
        assert suspects_of(tmp_path) == []

    def test_without_a_crowd_the_longest_in_its_stage(self, tmp_path: Path) -> None:
        write_beats(tmp_path, beat(0, 5, "h2d", ago_s=95), beat(1, 5, "iter", ago_s=0.1))
        ((rank, reasons),) = suspects_of(tmp_path)
        assert rank == 0
        assert reasons[0].startswith("in h2d for 1 min 3")

    def test_a_checkpoint_may_take_long(self, tmp_path: Path) -> None:
        write_beats(tmp_path, beat(0, 5, "save", ago_s=95), beat(1, 5, "iter", ago_s=0.1))
        assert suspects_of(tmp_path) == []

    def test_all_in_the_same_place_and_nobody_stands_out(self, tmp_path: Path) -> None:
        write_beats(tmp_path, *(beat(r, 5, "checkpoint") for r in range(4)))
        assert suspects_of(tmp_path) == []

    def test_the_dead_come_before_the_late(self, tmp_path: Path, start_rank: Start) -> None:
        kill(start_rank(0, 20, "iter"))
        write_beats(tmp_path, beat(1, 30, "iter"), beat(2, 3, "iter"))
        assert [rank for rank, _ in suspects_of(tmp_path)] == [0, 2]

    def test_thousands_of_ranks_are_summed_up(self, tmp_path: Path, run_python: RunPython) -> None:
        write_beats(tmp_path, *(beat(r, 9, "iter", "all_reduce") for r in range(2000) if r != 1234))
        write_beats(tmp_path, beat(1234, 9, "iter", "data"))
        done = show(run_python, tmp_path, "--once")
        assert done.returncode == EXIT_SUSPECTS
        lines = done.stdout.splitlines()
        assert len(lines) < 10
        assert any(line.split()[0] == "0-1233,1235-1999" for line in lines if line)
        assert any(line.startswith("! 1234") for line in lines)
        everyone = show(run_python, tmp_path, "--once", "--all")
        assert len(everyone.stdout.splitlines()) > 2000


class TestBadFiles:
    @pytest.fixture
    def good(self, tmp_path: Path, start_rank: Start) -> Path:
        start_rank(0, 1, "iter")
        return tmp_path

    def check(self, folder: Path, name: str, reason: str) -> None:
        """The file is named with the reason, and the good rank is there all the same."""
        data = snapshot(folder)
        assert [(Path(p["file"]).name, p["reason"]) for p in data["problems"]] == [(name, reason)]
        assert [rank["stack"] for rank in data["ranks"]] == [["iter"]]

    def copy_of_journal(self, folder: Path) -> Path:
        (journal,) = folder.glob("*.journal")
        copy = folder / "rank_1.77.88.journal"
        shutil.copy(journal, copy)
        return copy

    def test_a_foreign_journal(self, good: Path) -> None:
        (good / "rank_1.77.88.journal").write_bytes(b"x" * 10_000)
        self.check(good, "rank_1.77.88.journal", "not a journal: the first bytes are others")

    def test_a_newer_journal(self, good: Path) -> None:
        with self.copy_of_journal(good).open("r+b") as file:
            file.seek(VERSION_AT)
            file.write((2).to_bytes(4, sys.byteorder))
        self.check(
            good, "rank_1.77.88.journal", "the journal has version 2; this program reads up to 1"
        )

    def test_a_journal_that_was_cut(self, good: Path) -> None:
        os.truncate(self.copy_of_journal(good), 9000)
        self.check(good, "rank_1.77.88.journal", "the journal is cut short: 9000 bytes")

    def test_a_fifo(self, good: Path) -> None:
        path = good / "rank_1.77.88.journal"
        os.mkfifo(path)
        self.check(good, path.name, f"not a journal: {path}")

    def test_a_directory(self, good: Path) -> None:
        path = good / "rank_1.77.88.journal"
        path.mkdir()
        self.check(good, path.name, f"not a journal: {path}")

    def test_one_that_vanishes_is_no_problem(self, good: Path) -> None:
        for name in ("rank_1.77.88.journal", "rank_1.heartbeat.json", "rank_1.77.88.journal-ref"):
            (good / name).symlink_to(good / "gone")
        assert snapshot(good)["problems"] == []

    def test_a_pointer_leads_to_no_other_file(self, good: Path) -> None:
        (good / "rank_1.77.88.journal-ref").write_text("/etc/passwd\n", encoding="utf-8")
        self.check(good, "rank_1.77.88.journal-ref", "names a journal with another name")

    @pytest.mark.parametrize(
        ("content", "reason"),
        [
            ('{"version": 1, "rank"', "damaged or cut short: Input data was truncated"),
            ('{"version": 2}', "heartbeat version 2; this program reads up to 1"),
            ("[]", FOREIGN),
            ('{"version": 1}', f"{FOREIGN}: Object missing required field `rank`"),
            (json.dumps(beat(1, 1) | {"lanes": [{}]}), f"{FOREIGN}: Object missing required field"),
            (json.dumps(beat(1, 1) | {"lanes": 5}), f"{FOREIGN}: Expected `array`, got `int`"),
            (json.dumps(beat(1, 1) | {"time": 1e300, "time_offset": 1e308}), FOREIGN),
        ],
        ids=[
            "cut short", "newer version", "a list", "no rank", "an empty lane", "lanes as a number",
            "a time out of range",
        ],
    )  # fmt: skip
    def test_bad_heartbeats(self, good: Path, content: str, reason: str) -> None:
        (good / "rank_1.heartbeat.json").write_text(content, encoding="utf-8")
        data = snapshot(good)
        (problem,) = data["problems"]
        assert problem["file"] == str(good / "rank_1.heartbeat.json")
        assert problem["reason"].startswith(reason)
        assert len(data["ranks"]) == 1

    def test_problems_are_shown_to_people(self, good: Path, run_python: RunPython) -> None:
        (good / "rank_1.heartbeat.json").write_text("[]", encoding="utf-8")
        done = show(run_python, good, "--once")
        assert f"left out {good}/rank_1.heartbeat.json: not a heartbeat of my_utils" in done.stdout


class TestTheCommand:
    def test_no_rank(self, tmp_path: Path, run_python: RunPython) -> None:
        done = show(run_python, tmp_path, "--once")
        assert done.returncode == EXIT_NOTHING
        assert "no rank has left a journal or a heartbeat here yet" in done.stdout

    def test_no_directory(self, tmp_path: Path, run_python: RunPython) -> None:
        done = show(run_python, tmp_path / "gone", "--once")
        assert done.returncode == EXIT_USAGE
        assert done.stderr == f"my_utils live: error: {tmp_path}/gone: no such file or directory\n"

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (["--ranks", "3-x"], "ranks must be numbers and ranges such as 0,3-7, not '3-x'"),
            (["--ranks", "7-3"], "ranks must rise from 0 up, as in 0,3-7, not '7-3'"),
            (["--interval", "0"], "must be seconds above 0, not '0'"),
            (["--interval", "1e10"], "must be at most 86,400 seconds, not '1e10'"),
            (["--stuck-after", "soon"], "must be seconds above 0, not 'soon'"),
        ],
    )
    def test_wrong_arguments(
        self, tmp_path: Path, run_python: RunPython, arguments: list[str], message: str
    ) -> None:
        done = show(run_python, tmp_path, *arguments)
        assert done.returncode == EXIT_USAGE
        assert message in done.stderr

    def test_snapshot_checks_its_arguments(self, tmp_path: Path) -> None:
        with pytest.raises(ValueError, match="stuck_after_s must be finite and above 0, not 0"):
            snapshot(tmp_path, stuck_after_s=0)
        with pytest.raises(TypeError, match="stuck_after_s must be a number of seconds, not '1'"):
            snapshot(tmp_path, stuck_after_s="1")

    def test_nothing_heavy_is_loaded(self, tmp_path: Path, run_python: RunPython) -> None:
        program = (
            "import sys; from my_utils.cli import live; live.main([sys.argv[1], '--once']);"
            "print([m for m in ('torch', 'numpy', 'tqdm', 'rich') if m in sys.modules])"
        )
        assert run_python("-c", program, str(tmp_path)).stdout.endswith("[]\n")

    def test_it_follows_the_run_line_by_line(self, tmp_path: Path, start_rank: Start) -> None:
        process = start_rank(0, 1, "iter")
        options = ("--json", "--interval", "0.05", "--stuck-after", str(LONG_S))
        with follow(tmp_path, *options, stdout=subprocess.PIPE) as looking:
            assert looking.stdout is not None
            states = [loads_checked("live", looking.stdout.readline())["ranks"][0]["state"]]
            tell_to_close(process)
            while states[-1] != "closed":
                states.append(loads_checked("live", looking.stdout.readline())["ranks"][0]["state"])
            looking.send_signal(signal.SIGINT)
            looking.communicate(timeout=60)  # a full pipe would hold it up
            assert looking.returncode == EXIT_FINE
        assert states[0] == "running"

    def test_what_it_cannot_read_is_no_part_of_its_json(
        self, tmp_path: Path, start_rank: Start
    ) -> None:
        start_rank(0, 1, "iter")
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        with follow(tmp_path, "--json", "--interval", "0.05", **pipes) as looking:
            assert looking.stdout is not None and looking.stderr is not None
            looking.stdout.readline()
            away = tmp_path.rename(tmp_path.with_name("away"))
            said = looking.stderr.readline()
            away.rename(tmp_path)
            looking.send_signal(signal.SIGINT)
            rest, _ = looking.communicate(timeout=60)
        assert said == f"my_utils live: {tmp_path}: No such file or directory\n"
        for line in rest.splitlines():
            loads_checked("live", line)

    @pytest.mark.slow
    def test_a_pipe_that_closes_is_no_error(self, tmp_path: Path, start_rank: Start) -> None:
        start_rank(0, 1, "iter")
        with follow(
            tmp_path, "--interval", "0.05", stdout=subprocess.PIPE, stderr=subprocess.PIPE
        ) as looking:
            assert looking.stdout is not None and looking.stderr is not None
            looking.stdout.readline()
            looking.stdout.close()
            assert looking.wait(60) == EXIT_FINE
            assert looking.stderr.read() == ""


def follow(
    folder: Path, *arguments: str, stdout: int | IO[str], stderr: int | None = None
) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "my_utils", "live", str(folder), *arguments],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=stdout,
        stderr=stderr,
        text=True,
    )


def test_the_readers_errors(tmp_path: Path) -> None:
    """What `_core` raises by itself, for those who call it."""
    for function in (_core.read_journal, _core.recover_rows):
        with pytest.raises(FileNotFoundError):
            function(tmp_path / "gone")
        with pytest.raises(_core.FormatError, match="not a journal"):
            function("/dev/null")
        with pytest.raises(TypeError, match="journal_path must be a path"):
            function(3)  # type: ignore[arg-type]
