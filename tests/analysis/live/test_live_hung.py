"""`python -m my_utils live --hung` and what a directory of many ranks may hold: ranks that stand
still, are gone, never came, belong to an earlier run, or have begun again at an earlier step."""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from my_utils.analysis import live
from my_utils.cli.live import EXIT_FINE, EXIT_NOTHING, EXIT_SUSPECTS, EXIT_USAGE
from my_utils.core import ranks
from my_utils.core.run_files import copied

from ...conftest import RunPython
from ...support.live_ranks import (
    Start,
    Started,
    beat,
    kill,
    tell,
    tell_to_close,
    wait_until,
    write_beats,
)
from ...support.schemas import loads_checked

snapshot: Any = live.snapshot  # without the types of its keys

pytestmark = pytest.mark.no_torch

HUNG_S = 0.5  # for processes that do nothing at all
LONG_S = 600.0
BETWEEN_RUNS_S = 0.3  # the kernel knows a process's start to 10 ms


@pytest.fixture
def start_rank(tmp_path: Path) -> Iterator[Start]:
    started = Started(tmp_path)
    yield started
    started.end()


def until_hung(folder: Path, count: int) -> dict[str, Any]:
    """What is seen once `count` ranks have stood still for so long, and none is late to say that
    it lives."""
    seen: dict[str, Any] = {}

    def standing() -> bool:
        seen.update(snapshot(folder, hung_after_s=HUNG_S))
        states = [rank["state"] for rank in seen["ranks"]]
        still = [rank["still_s"] or 0.0 for rank in seen["ranks"]]
        return "silent" not in states and sum(each >= HUNG_S for each in still) >= count

    wait_until(standing)
    return seen


def kinds(data: dict[str, Any]) -> dict[int, list[str]]:
    return {suspect["rank"]: suspect["kinds"] for suspect in data["suspects"]}


class TestOneRankHolds:
    def test_in_another_stage_than_those_that_wait(self, tmp_path: Path, start_rank: Start) -> None:
        before = time.time_ns()
        for rank in (0, 1, 3):
            start_rank(rank, 12, "iter,all_reduce", world=4)
        start_rank(2, 12, "iter,data", world=4)
        data = until_hung(tmp_path, 4)
        assert data["hang"]["hung"] is True
        assert data["hang"]["waiting"] == [0, 1, 3]
        assert data["hang"]["waiting_step"] == 12
        assert data["hang"]["waiting_stack"] == ["iter", "all_reduce"]
        assert before < data["hang"]["since_ns"] < time.time_ns()
        assert kinds(data) == {2: ["elsewhere"]}
        (suspect,) = data["suspects"]
        assert (suspect["host"], suspect["step"]) == ("node-a", 12)
        assert suspect["stack"] == ["iter", "data"]
        assert before < suspect["moved_ns"] < time.time_ns()
        assert suspect["still_s"] >= HUNG_S

    def test_behind_the_step_of_the_others(self, tmp_path: Path, start_rank: Start) -> None:
        for rank in (0, 1):
            start_rank(rank, 8, "iter", world=3)
        start_rank(2, 7, "iter", world=3)
        data = until_hung(tmp_path, 3)
        assert kinds(data) == {2: ["behind"]}
        assert data["hang"]["waiting"] == [0, 1]

    def test_killed(self, tmp_path: Path, start_rank: Start) -> None:
        processes = [start_rank(rank, 5, "iter,all_reduce", world=3) for rank in range(3)]
        kill(processes[1])
        data = until_hung(tmp_path, 3)
        assert kinds(data) == {1: ["dead"]}
        assert data["hang"]["waiting"] == [0, 2]

    def test_stopped(self, tmp_path: Path, start_rank: Start) -> None:
        processes = [start_rank(rank, 5, "iter,all_reduce", world=3) for rank in range(3)]
        wait_until(lambda: snapshot(tmp_path)["ranks"][1]["beat_age_s"] is not None)
        os.kill(processes[1].pid, signal.SIGSTOP)

        def only_one_is_silent() -> bool:
            data = snapshot(tmp_path, hung_after_s=2.5)
            return kinds(data).get(1, [])[:1] == ["silent"] and 0 in data["hang"]["waiting"]

        wait_until(only_one_is_silent)

    def test_without_files(self, tmp_path: Path, start_rank: Start, run_python: RunPython) -> None:
        for rank in (0, 2):
            start_rank(rank, 0, "init", world=4)
        data = until_hung(tmp_path, 2)
        assert data["hang"]["hung"] is True
        assert data["hang"]["missing"] == data["missing_ranks"] == [1, 3]
        assert data["suspects"] == []
        done = run_python("-m", "my_utils", "live", str(tmp_path), "--hung", str(HUNG_S))
        assert "no file of 2 ranks: 1,3" in done.stdout.splitlines()

    def test_ended_before_the_others(self, tmp_path: Path, start_rank: Start) -> None:
        processes = [start_rank(rank, 5, "iter", world=3) for rank in range(3)]
        tell_to_close(processes[2])
        data = until_hung(tmp_path, 3)
        assert kinds(data) == {2: ["ended"]}

    def test_most_have_ended_and_one_saves(self, tmp_path: Path, start_rank: Start) -> None:
        processes = [start_rank(rank, 5, "save", world=3) for rank in range(3)]
        for process in processes[1:]:
            tell_to_close(process)
        data = until_hung(tmp_path, 3)
        assert (data["hang"]["hung"], data["suspects"]) == (False, []), "it may take long"


class TestTheVerdict:
    def test_who_moves_does_not_hang(self, tmp_path: Path, start_rank: Start) -> None:
        process = start_rank(0, 1, "iter", world=1)
        time.sleep(HUNG_S)
        tell(process, "start data")
        data = snapshot(tmp_path, hung_after_s=LONG_S)
        assert data["hang"]["hung"] is False
        assert data["hang"]["longest_still_s"] < HUNG_S + 60
        began = data["ranks"][0]["moved_ns"]
        tell(process, "stop data")
        (rank,) = snapshot(tmp_path, hung_after_s=LONG_S)["ranks"]
        assert rank["stack"] == ["iter"]
        assert rank["moved_ns"] > began, "the end of a stage is a move"
        assert rank["open_s"] > rank["still_s"]

    def test_behind_but_on_its_way(self, tmp_path: Path, start_rank: Start) -> None:
        start_rank(0, 30, "iter")
        start_rank(1, 3, "iter")
        assert kinds(snapshot(tmp_path, stuck_after_s=LONG_S)) == {1: ["behind"]}
        assert snapshot(tmp_path, hung_after_s=LONG_S)["suspects"] == []

    def test_all_in_one_place(self, tmp_path: Path) -> None:
        write_beats(tmp_path, *(beat(rank, 4, "iter", "all_reduce") for rank in range(3)))
        data = snapshot(tmp_path, hung_after_s=30)
        assert (data["hang"]["hung"], data["suspects"]) == (True, [])
        assert data["hang"]["waiting"] == [0, 1, 2]

    @pytest.mark.parametrize(("seconds", "status"), [("30", EXIT_SUSPECTS), ("90", 0)])
    def test_the_status(
        self, tmp_path: Path, run_python: RunPython, seconds: str, status: int
    ) -> None:
        write_beats(tmp_path, *(beat(rank, 4, "iter") for rank in range(3)))
        done = run_python("-m", "my_utils", "live", str(tmp_path), "--hung", seconds, "--json")
        assert done.returncode == status
        assert loads_checked("live", done.stdout)["hang"]["hung"] is bool(status)

    def test_no_rank_and_no_directory(self, tmp_path: Path, run_python: RunPython) -> None:
        done = run_python("-m", "my_utils", "live", str(tmp_path), "--hung", "5")
        assert done.returncode == EXIT_NOTHING
        done = run_python(
            "-m", "my_utils", "live", str(tmp_path), str(tmp_path / "x"), "--hung", "5"
        )
        assert done.returncode == EXIT_USAGE
        assert done.stderr == f"my_utils live: error: {tmp_path}/x: no such file or directory\n"

    def test_the_lines_for_people(self, tmp_path: Path, run_python: RunPython) -> None:
        write_beats(tmp_path, *(beat(rank, 812, "iter", "all_reduce") for rank in (0, 1, 3)))
        write_beats(tmp_path, beat(2, 812, "iter", "data", ago_s=75.0))
        done = run_python("-m", "my_utils", "live", str(tmp_path), "--hung", "30")
        lines = done.stdout.splitlines()
        verdict = "step 812, in iter > all_reduce, 3 ranks: 0-1,3"
        assert lines[1].startswith("hangs since ") and lines[1].endswith(verdict)
        assert any(line.startswith("  0-1,3 (3)  running   812") for line in lines)
        (line,) = (line for line in lines if line.startswith("! rank 2"))
        assert "! rank 2 on node-2, step 812, in iter > data, since " in line
        assert "(1 min 1" in line
        assert line.endswith("in iter > data while 3 of 4 ranks wait in iter > all_reduce")

    def test_thousands_of_ranks(self, tmp_path: Path, run_python: RunPython) -> None:
        write_beats(tmp_path, *(beat(rank, 9, "iter", "all_reduce") for rank in range(1_998)))
        write_beats(tmp_path, beat(1_998, 8, "iter", "data", world_size=2_000))
        done = run_python("-m", "my_utils", "live", str(tmp_path), "--hung", "30")
        assert done.returncode == EXIT_SUSPECTS
        lines = done.stdout.splitlines()
        assert len(lines) < 15
        assert lines[1].endswith("1998 ranks: 0-1997")
        assert "no file of 1 rank: 1999" in lines
        assert any(line.startswith("! rank 1998 on node-1998, step 8, ") for line in lines)


class TestSeveralDirectories:
    def test_of_the_ranks_of_one_run(
        self, tmp_path: Path, start_rank: Start, run_python: RunPython
    ) -> None:
        folders = [tmp_path / "a", tmp_path / "b"]
        for rank, folder in enumerate(folders):
            start_rank(rank, 3, "iter", log_dir=folder)
        data = snapshot(folders)
        assert [rank["rank"] for rank in data["ranks"]] == [0, 1]
        assert data["log_dirs"] == [str(folder) for folder in folders]
        long = ("--stuck-after", str(LONG_S))
        done = run_python("-m", "my_utils", "live", *map(str, folders), "--once", *long)
        assert done.returncode == EXIT_FINE

    def test_the_same_rank_in_two_of_them(self, tmp_path: Path) -> None:
        for folder, attempt, step in (("a", 2, 50), ("b", 1, 90)):
            (tmp_path / folder).mkdir()
            write_beats(tmp_path / folder, beat(0, step, "iter", attempt=attempt))
        (rank,) = snapshot([tmp_path / "a", tmp_path / "b"])["ranks"]
        assert (rank["attempt"], rank["step"]) == (2, 50)

    def test_none_is_refused(self) -> None:
        with pytest.raises(ValueError, match="log_dir must name at least one directory"):
            snapshot([])


class TestTwoRunsInOneDirectory:
    def test_ranks_beyond_the_new_world_are_of_the_old_run(
        self, tmp_path: Path, start_rank: Start, run_python: RunPython
    ) -> None:
        for process in [start_rank(rank, 99, "old", world=4) for rank in range(4)]:
            kill(process)
        time.sleep(BETWEEN_RUNS_S)
        for rank in range(2):
            start_rank(rank, 5, "new", world=2)
        data = snapshot(tmp_path, stuck_after_s=LONG_S)
        assert [(rank["rank"], rank["step"]) for rank in data["ranks"]] == [(0, 5), (1, 5)]
        assert [(rank["rank"], rank["state"]) for rank in data["earlier_run"]] == [
            (2, "dead"),
            (3, "dead"),
        ]
        assert (data["suspects"], data["missing_ranks"]) == ([], [])
        done = run_python("-m", "my_utils", "live", str(tmp_path), "--once")
        assert "left by an earlier run, not shown: 2 ranks: 2-3" in done.stdout.splitlines()

    def test_a_rank_that_ended_well_then_is_missing_now(
        self, tmp_path: Path, start_rank: Start
    ) -> None:
        for process in [start_rank(rank, 99, "old", world=3) for rank in range(3)]:
            tell_to_close(process)
        time.sleep(BETWEEN_RUNS_S)
        for rank in (0, 1):
            start_rank(rank, 0, "init", world=3)
        data = until_hung(tmp_path, 2)
        assert [rank["rank"] for rank in data["earlier_run"]] == [2]
        assert data["hang"]["missing"] == [2]

    def test_a_rank_that_died_before_the_others_came(
        self, tmp_path: Path, start_rank: Start
    ) -> None:
        kill(start_rank(0, 0, "load", world=2))
        time.sleep(BETWEEN_RUNS_S)
        start_rank(1, 0, "init", world=2)
        suspects = snapshot(tmp_path, stuck_after_s=LONG_S)["suspects"]
        ((rank, reasons),) = ((item["rank"], item["reasons"]) for item in suspects)
        assert rank == 0
        assert reasons[0].endswith("; it was not seen after the other ranks began")

    def test_heartbeats_of_both(self, tmp_path: Path) -> None:
        now = time.time()
        old = {"began": now - 900, "time": now - 600, "world_size": 4}
        new = {"began": now - 60, "time": now, "world_size": 2}
        write_beats(tmp_path, *(beat(rank, 99, "iter", ago_s=700, **old) for rank in (2, 3)))
        write_beats(tmp_path, *(beat(rank, 5, "iter", **new) for rank in (0, 1)))
        for rank in (2, 3):
            os.utime(tmp_path / f"rank_{rank}.heartbeat.json", (now - 600, now - 600))
        data = snapshot(tmp_path)
        assert [rank["rank"] for rank in data["ranks"]] == [0, 1]
        assert [rank["rank"] for rank in data["earlier_run"]] == [2, 3]


class TestAResume:
    def test_steps_that_begin_again_are_the_ranks_steps(
        self, tmp_path: Path, start_rank: Start
    ) -> None:
        processes = [start_rank(rank, 150, "", world=2) for rank in range(2)]
        for process in processes:
            tell(process, "step 100")
            tell(process, "start iter")
        data = snapshot(tmp_path, hung_after_s=LONG_S)
        assert [rank["step"] for rank in data["ranks"]] == [100, 100]
        assert not data["hang"]["hung"]

    def test_one_that_has_not_come_back_is_named(self, tmp_path: Path, start_rank: Start) -> None:
        first = [start_rank(rank, 150, "iter", world=2) for rank in range(2)]
        for process in first:
            kill(process)
        start_rank(0, 100, "iter", world=2)
        data = until_hung(tmp_path, 1)
        assert [(rank["rank"], rank["step"]) for rank in data["ranks"]] == [(0, 100), (1, 150)]
        assert kinds(data) == {1: ["dead"]}

    def test_another_thread_does_not_speak_for_the_rank(self, tmp_path: Path) -> None:
        """A loader that is ahead, or kept the step of before the resume."""
        content = beat(0, 100, "iter")
        loader = {**content["lanes"][0], "tid": 7, "thread": "loader", "step": 150}
        write_beats(tmp_path, {**content, "lanes": [loader, *content["lanes"]]})
        write_beats(tmp_path, beat(1, 100, "iter"))
        data = snapshot(tmp_path, hung_after_s=30)
        assert [rank["step"] for rank in data["ranks"]] == [100, 100]
        assert data["suspects"] == []


class TestCutFiles:
    def test_a_row_that_was_cut_in_the_csv_is_no_matter(
        self, tmp_path: Path, start_rank: Start
    ) -> None:
        start_rank(0, 5, "iter", world=1)
        csv = tmp_path / "profile_rank_0.csv"
        with csv.open("ab") as file:
            file.write(b'1700000000.000000000,"2023-11-14 22:13:20.0000')
        data = snapshot(tmp_path)
        assert [rank["stack"] for rank in data["ranks"]] == [["iter"]]
        assert data["problems"] == []

    def test_a_heartbeat_that_was_cut_is_named_and_the_rank_missing(self, tmp_path: Path) -> None:
        write_beats(tmp_path, *(beat(rank, 5, "iter", world_size=3) for rank in range(3)))
        cut = tmp_path / "rank_1.heartbeat.json"
        os.truncate(cut, cut.stat().st_size // 2)
        data = snapshot(tmp_path, hung_after_s=30)
        assert [problem["file"] for problem in data["problems"]] == [str(cut)]
        assert data["hang"]["missing"] == [1]
        assert [rank["rank"] for rank in data["ranks"]] == [0, 2]


class TestSilence:
    @pytest.mark.parametrize(("age_s", "state"), [(3.0, "running"), (5.0, "silent")])
    def test_a_rank_is_not_silent_between_two_of_its_beats(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, age_s: float, state: str
    ) -> None:
        write_beats(tmp_path, beat(0, 4, "iter", ago_s=0.5))
        now = (tmp_path / "rank_0.heartbeat.json").stat().st_mtime + age_s
        monkeypatch.setattr(copied, "time", SimpleNamespace(time=lambda: now))
        (rank,) = snapshot(tmp_path, hung_after_s=1)["ranks"]
        assert (rank["beat_age_s"], rank["state"]) == (age_s, state)

    def test_a_moment_between_two_clocks_makes_no_process_older(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The start of a process is told by two clocks; something may come between them."""
        held_up = iter([100.0, 0.0, 0.0])
        clocks = SimpleNamespace(
            time=lambda: 5000.0, clock_gettime=lambda _: 1000.0 + next(held_up), CLOCK_BOOTTIME=7
        )
        monkeypatch.setattr(ranks, "time", clocks)
        ticks = 50 * os.sysconf("SC_CLK_TCK")
        assert ranks.process_began_s(ticks) == 4050.0


class TestClocks:
    def test_a_host_whose_clock_is_wrong(self, tmp_path: Path, run_python: RunPython) -> None:
        """Its heartbeats are as old as their files, and its stages as old as they were then."""
        now = time.time()
        ahead = beat(1, 4, "iter", ago_s=20.0)
        shift = 300.0
        ahead["time"] += shift
        ahead["lanes"][0]["open"][0]["since"] += shift
        write_beats(tmp_path, beat(0, 4, "iter", ago_s=20.0), ahead)
        ranks = snapshot(tmp_path, stuck_after_s=60)["ranks"]
        assert [rank["state"] for rank in ranks] == ["running", "running"]
        assert abs(ranks[0]["clock_ahead_s"]) < 60 < ranks[1]["clock_ahead_s"]
        for rank in ranks:
            assert 20 <= rank["still_s"] < 80
        done = run_python("-m", "my_utils", "live", str(tmp_path), "--once")
        line = "clocks of 1 host differ from the file server's, node-1's most: it is "
        assert any(text.startswith(line) for text in done.stdout.splitlines())
        os.utime(tmp_path / "rank_1.heartbeat.json", (now - 90, now - 90))
        assert snapshot(tmp_path, stuck_after_s=60)["ranks"][1]["state"] == "silent"

    @pytest.mark.parametrize("copied_s", [5.0, 300.0, 3000.0])
    def test_files_that_were_copied_are_no_wrong_clock(
        self, tmp_path: Path, run_python: RunPython, copied_s: float
    ) -> None:
        """A copy is younger than what stands in it."""
        content = beat(0, 4, "iter")
        content["time"] = time.time() - 3400.0
        write_beats(tmp_path, content, {**content, "rank": 1, "label": "rank_1", "closed": True})
        moment = time.time() - copied_s
        for path in tmp_path.iterdir():
            os.utime(path, (moment, moment))
        done = run_python("-m", "my_utils", "live", str(tmp_path), "--once")
        assert "clock" not in done.stdout

    def test_an_offset_is_part_of_the_times(self, tmp_path: Path) -> None:
        content = beat(0, 4, "iter", ago_s=20.0)
        content["time_offset"] = 7.5
        content["lanes"][0]["open"][0]["since"] += 7.5
        content["lanes"][0]["ended"] = content["time"] + 7.5 - 5.0
        write_beats(tmp_path, content)
        (rank,) = snapshot(tmp_path)["ranks"]
        assert rank["time_offset_s"] == 7.5
        assert 20 <= rank["open_s"] < 80
        assert 5 <= rank["still_s"] < 20

    def test_an_old_copy_keeps_the_heartbeats_own_time(self, tmp_path: Path) -> None:
        content = beat(0, 4, "iter")
        content["time"] -= 90_000.0
        write_beats(tmp_path, content)
        (rank,) = snapshot(tmp_path)["ranks"]
        assert rank["state"] == "silent" and rank["beat_age_s"] >= 86_400.0
        assert rank["clock_ahead_s"] is None


class TestHeartbeatsOfRealProcesses:
    def test_they_say_when_the_process_began_and_moved(
        self, tmp_path: Path, start_rank: Start
    ) -> None:
        logs, elsewhere, seen = tmp_path / "logs", tmp_path / "local", tmp_path / "seen"
        for folder in (elsewhere, seen):
            folder.mkdir()
        start_rank(0, 4, "iter,data", log_dir=logs, journal_dir=str(elsewhere))
        heartbeat = logs / "rank_0.heartbeat.json"
        wait_until(lambda: "data" in heartbeat.read_text(encoding="utf-8"))
        (here,) = snapshot(logs)["ranks"]
        shutil.copy2(heartbeat, seen)
        (there,) = snapshot(seen)["ranks"]
        assert (here["source"], there["source"]) == ("journal", "heartbeat")
        assert abs(here["began_s"] - there["began_s"]) < 1.0
        assert time.time() - 600 < there["began_s"] < time.time()
        assert abs(here["moved_ns"] - there["moved_ns"]) < 10_000

    def test_the_end_of_a_stage_is_in_them(self, tmp_path: Path, start_rank: Start) -> None:
        logs, elsewhere, seen = tmp_path / "logs", tmp_path / "local", tmp_path / "seen"
        for folder in (elsewhere, seen):
            folder.mkdir()
        process = start_rank(0, 4, "iter,data", log_dir=logs, journal_dir=str(elsewhere))
        tell(process, "stop data")

        def of_heartbeat() -> dict[str, Any]:
            shutil.copy2(logs / "rank_0.heartbeat.json", seen)
            (rank,) = snapshot(seen)["ranks"]
            return dict(rank)

        wait_until(lambda: of_heartbeat()["stack"] == ["iter"])
        (here,) = snapshot(logs)["ranks"]
        assert abs(of_heartbeat()["moved_ns"] - here["moved_ns"]) < 10_000


class TestWhatTakesLong:
    """A checkpoint, an evaluation or a compilation of minutes is not a hang."""

    @pytest.mark.parametrize(
        ("step", "stage"), [(12, "checkpoint"), (12, "eval"), (12, "validation"), (0, "forward")]
    )
    def test_others_wait_for_it(self, step: int, stage: str, tmp_path: Path) -> None:
        others = [beat(rank, step, "all_reduce", ago_s=55.0) for rank in (1, 2, 3)]
        write_beats(tmp_path, beat(0, step, stage, ago_s=60.0), *others)
        data = snapshot(tmp_path, hung_after_s=30.0, stuck_after_s=LONG_S)
        assert not data["hang"]["hung"], data["hang"]
        late = [beat(rank, step, "all_reduce", ago_s=650.0) for rank in (1, 2, 3)]
        write_beats(tmp_path, beat(0, step, stage, ago_s=660.0), *late)
        data = snapshot(tmp_path, hung_after_s=30.0, stuck_after_s=LONG_S)
        assert data["hang"]["hung"] and list(kinds(data)) == [0]

    def test_any_other_stage_is_one(self, tmp_path: Path) -> None:
        for step, stage in ((12, "forward"), (0, "input"), (12, "optimizer")):
            others = [beat(rank, step, "all_reduce", ago_s=55.0) for rank in (1, 2, 3)]
            write_beats(tmp_path, beat(0, step, stage, ago_s=60.0), *others)
            data = snapshot(tmp_path, hung_after_s=30.0, stuck_after_s=LONG_S)
            assert data["hang"]["hung"] and list(kinds(data)) == [0]


def test_ranks_in_a_recorded_collective_wait(tmp_path: Path) -> None:
    """In the stage alone all ranks would be alike."""
    beats = [beat(rank, 12, "forward", ago_s=60.0) for rank in range(4)]
    for waiting in beats[1:]:
        (lane,) = waiting["lanes"]
        stage = {**lane["open"][0], "name": "wait all_reduce tp"}
        waiting["lanes"].append({**lane, "tag": "collectives", "open": [stage]})
    write_beats(tmp_path, *beats)
    data = snapshot(tmp_path, hung_after_s=30.0, stuck_after_s=LONG_S)
    assert data["ranks"][1]["stack"] == ["forward", "wait all_reduce tp"]
    assert list(kinds(data)) == [0]
    assert data["hang"]["hung"]
