"""Who holds up the others by all that is known: dumps, stages, recorded collectives, and ends of
processes, in `live`, `why` and the closing lines of `my_utils run`."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from my_utils.analysis import live
from my_utils.cli import live as live_command, why
from my_utils.run.closing import ended_standing_lines, verdict_lines

from ...conftest import RunPython
from ...support.flight_dumps import calls, calls_at, write_dump
from ...support.live_ranks import Start, Started, beat, kill, wait_until, write_beats
from ...support.run_csv import RankCsv

pytestmark = pytest.mark.no_torch

snapshot: Any = live.snapshot  # without the types of its keys

HUNG_S = 30.0
BETWEEN_S = 6.0  # a process that ended so much earlier did so before the others


@pytest.fixture
def start_rank(tmp_path: Path) -> Iterator[Start]:
    started = Started(tmp_path / "logs")
    yield started
    started.end()


def in_call(rank: int, call: str, **more: Any) -> dict[str, Any]:
    """A heartbeat of a rank in its forward, in a recorded call."""
    waiting = beat(rank, 12, "forward", **more)
    (lane,) = waiting["lanes"]
    stage = {**lane["open"][0], "name": call}
    waiting["lanes"].append({**lane, "tag": "collectives", "open": [stage]})
    return waiting


def write_rows(folder: Path, rank: int, *rows: tuple[str, str]) -> None:
    """Rows about the run, as `GlobalLogger.instant` writes them."""
    text = "".join(
        f'1.5,1970-01-01 00:00:01.500000,vm-rank{rank},0,{name},INSTANT,,"tid=1,{pairs}"\n'
        for name, pairs in rows
    )
    (folder / f"profile_rank_{rank}.csv").write_text(text, encoding="utf-8")


def named(data: dict[str, Any]) -> list[int]:
    return [rank for cause in data["causes"] if cause["decided"] for rank in cause["ranks"]]


class TestRecordedCollectives:
    @pytest.fixture
    def chain(self, logs: Path) -> Path:
        """tp groups 0-1 and 2-3, dp groups 0,2 and 1,3. Rank 3 reads its input."""
        for rank in range(4):
            tp, dp = ("0-1", "2-3")[rank // 2], ("0%2C2", "1%2C3")[rank % 2]
            rows = [
                ("my_utils.group", f"label={k},members={v}") for k, v in (("tp", tp), ("dp", dp))
            ]
            write_rows(logs, rank, *rows)
        beats = [in_call(rank, "wait all_gather dp") for rank in (0, 1)]
        write_beats(logs, *beats, in_call(2, "wait all_reduce tp"), beat(3, 12, "input"))
        return logs

    def test_the_groups_make_the_graph(self, chain: Path) -> None:
        data = snapshot(chain, hung_after_s=HUNG_S)
        (cause,) = data["causes"]
        assert (cause["ranks"], cause["kind"], cause["decided"]) == ([3], "elsewhere", True)
        assert (cause["waiting_directly"], cause["waiting"]) == ([1, 2], [0, 1, 2])
        assert "call" not in cause
        assert [(one["rank"], one["reasons"]) for one in data["suspects"]] == [
            (3, cause["reasons"])
        ]
        assert [one["waits_for"] for one in data["waiting"]] == [3, 3, 3]

    def test_without_them_each_rank_may_wait_for_each_other_one(self, chain: Path) -> None:
        for path in chain.glob("*.csv"):
            path.unlink()
        assert named(snapshot(chain, hung_after_s=HUNG_S)) == [3]

    def test_damaged_rows_are_no_groups(self, chain: Path) -> None:
        for rank in range(4):
            write_rows(chain, rank, ("my_utils.group", "label=tp,members=0-4294967295%2Cx"))
        assert named(snapshot(chain, hung_after_s=HUNG_S)) == [3]


class TestSendsAndReceives:
    def test_a_silent_rank_has_no_dump(self, logs: Path, dumps: Path) -> None:
        """As one that is stopped; the rows say who waits for its send."""
        write_beats(logs, in_call(1, "wait recv 0"), in_call(0, "wait recv 1"))
        old_s = time.time() - 600
        os.utime(logs / "rank_0.heartbeat.json", (old_s, old_s))
        write_dump(dumps, 1, calls("broadcast"), world=2)
        data = snapshot(logs, hung_after_s=HUNG_S, flight_recorder=dumps)
        assert named(data) == [0]

    def test_two_that_both_send_wait_for_each_other(self, logs: Path) -> None:
        write_beats(logs, *(in_call(rank, f"wait send {1 - rank}") for rank in (0, 1)))
        (cause,) = snapshot(logs, hung_after_s=HUNG_S)["causes"]
        assert (cause["kind"], cause["ranks"], cause["decided"]) == ("ring", [0, 1], False)


class TestProcessesThatEnded:
    def test_a_dead_one_decides_among_ranks_without_a_dump(
        self, dumps: Path, start_rank: Start
    ) -> None:
        """Two have left none: one is dead, the other has only lost its file."""
        for rank in (0, 1, 3):
            start_rank(rank, 12, "forward", world=4)
        dead = start_rank(2, 12, "forward", world=4)
        began_s = time.time()
        for rank in (0, 1):
            path = write_dump(dumps, rank, calls_at(began_s, "all_reduce", "broadcast"))
            os.utime(path, (began_s + 60, began_s + 60))
        data = snapshot(dumps.parent / "logs", flight_recorder=dumps)
        (cause,) = data["flight_recorder"]["causes"]
        assert (cause["kind"], cause["ranks"], cause["decided"]) == ("no dump", [2, 3], False)
        kill(dead)
        data = snapshot(dumps.parent / "logs", flight_recorder=dumps)
        (cause,) = data["flight_recorder"]["causes"]
        assert (cause["kind"], cause["ranks"]) == ("dead", [2])
        assert (cause["waiting"], cause["call"]["missing"]) == ([0, 1], [2])
        assert cause["reasons"][1].startswith("rank 2: its process is gone")
        assert named(data) == [2]

    def test_its_exception_is_said(self, logs: Path) -> None:
        others = [in_call(rank, "wait all_reduce world") for rank in (0, 1)]
        write_beats(logs, *others, beat(2, 12, closed=True))
        write_rows(logs, 2, ("my_utils.run_end", "iterations=13,error=ValueError"))
        (cause,) = snapshot(logs, hung_after_s=HUNG_S)["causes"]
        assert (cause["kind"], cause["ranks"]) == ("ended", [2])
        assert cause["reasons"] == ["it ended with ValueError while 2 of 3 ranks wait"]

    def test_that_of_an_older_process_is_not_its_own(self, logs: Path, start_rank: Start) -> None:
        """It was started again and killed, and a process that is killed writes no row."""
        csv = RankCsv()
        csv.process()
        csv.note("run_end", {"iterations": 13, "error": "ValueError"})
        csv.write(logs)
        kill(start_rank(0, 12, "forward", world=1))
        (suspect,) = snapshot(logs, hung_after_s=HUNG_S)["suspects"]
        assert suspect["reasons"] == ["its process is gone and did not exit cleanly"]


class TestDumpsAndStages:
    def held(self, logs: Path, dumps: Path, *stages: str, step: int = 12) -> dict[str, Any]:
        """Three ranks are in a call that rank 1 has not entered."""
        for rank in (0, 2, 3):
            write_dump(dumps, rank, calls("all_reduce", "broadcast", last="started"))
            write_beats(logs, in_call(rank, "broadcast world", ago_s=55.0))
        write_dump(dumps, 1, calls("all_reduce"))
        write_beats(logs, beat(1, step, *stages, ago_s=57.0))
        return dict(snapshot(logs, hung_after_s=HUNG_S, flight_recorder=dumps))

    def test_they_are_one_cause(self, logs: Path, dumps: Path, run_python: RunPython) -> None:
        data = self.held(logs, dumps, "input")
        (cause,) = data["causes"]
        assert (cause["kind"], cause["ranks"], cause["waiting"]) == (
            "never entered",
            [1],
            [0, 2, 3],
        )
        assert cause["reasons"][0].startswith("rank 1 never entered broadcast #2")
        assert cause["reasons"][1] == (
            "rank 1: in input while 3 of 4 ranks wait in forward > broadcast world"
        )
        (suspect,) = data["suspects"]
        assert suspect["kinds"] == ["never entered", "elsewhere"]
        options = ("--hung", str(HUNG_S), "--flight-recorder", str(dumps))
        lines = run_python("-m", "my_utils", "live", str(logs), *options).stdout.splitlines()
        assert sum("rank 1" in line for line in lines if line.startswith("!")) == 1

    @pytest.mark.parametrize(("stage", "step"), [("checkpoint", 12), ("eval", 12), ("forward", 0)])
    def test_what_takes_long_is_no_cause(
        self, stage: str, step: int, logs: Path, dumps: Path
    ) -> None:
        data = self.held(logs, dumps, stage, step=step)
        assert (data["causes"], data["suspects"]) == ([], [])
        assert not data["hang"]["hung"]


class TestTheLines:
    def lines(self, run_python: RunPython, logs: Path, *options: str) -> list[str]:
        done = run_python("-m", "my_utils", "live", str(logs), "--hung", str(HUNG_S), *options)
        return [line for line in done.stdout.splitlines()[1:] if line]

    def test_thousands_of_ranks_have_six(self, logs: Path, run_python: RunPython) -> None:
        """Of many culprits those for the same reasons share a line."""
        culprits = [*range(7, 4096, 97)]
        write_beats(
            logs,
            *(in_call(n, "wait all_reduce world") for n in range(4096) if n not in culprits),
            *(beat(n, 12, ("input", "h2d")[n % 2]) for n in culprits),
        )
        head: list[str] = []
        for line in self.lines(run_python, logs):
            if line.split()[:2] == ["rank", "state"]:
                break
            head.append(line)
        assert len(head) <= 6
        assert head[0].startswith("hangs since ")
        assert [line.split(",")[0][:7] for line in head[1:]] == ["! ranks", "! ranks"]


class TestTheClosingLines:
    @pytest.mark.slow
    def test_a_rank_that_died_before_the_run_was_ended(self, logs: Path, start_rank: Start) -> None:
        """All are dead then, but two had waited for one that was gone."""
        processes = [start_rank(rank, 12, "iter,all_reduce", world=3) for rank in range(3)]
        kill(processes.pop(1))
        wait_until(lambda: snapshot(logs)["ranks"][0]["still_s"] > BETWEEN_S)
        for process in processes:
            kill(process)
        head, line = ended_standing_lines([str(logs)], 5.0)
        assert head.startswith("hung since ")
        assert line.startswith("! rank 1 on node-a, step 12, in iter > all_reduce, since ")
        assert line.endswith("its process is gone and did not exit cleanly")

    def test_who_held_up_the_others_when_it_was_ended(
        self, logs: Path, start_rank: Start, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("MY_UTILS_RUN_HUNG", "0.5")
        processes = [start_rank(rank, 12, "iter,all_reduce", world=3) for rank in (0, 2)]
        processes.append(start_rank(1, 12, "iter,input", world=3))
        wait_until(lambda: all((one["still_s"] or 0) > 1.0 for one in snapshot(logs)["ranks"]))
        for process in processes:
            kill(process)
        head, line, *_ = verdict_lines([str(logs)], 12)
        assert head.endswith(": step 12, in iter > all_reduce, 2 ranks: 0,2")
        assert line.startswith("! rank 1 on node-a, step 12, in iter > input, since ")
        assert line.endswith("in iter > input while 2 of 3 ranks wait in iter > all_reduce")

    @pytest.mark.slow
    def test_a_pause_that_was_longer_than_the_wait_in_the_dumps(
        self, logs: Path, start_rank: Start
    ) -> None:
        """The ranks had waited for four seconds when these were written, and waited on until they
        were killed."""
        folder = logs / "flight_recorder"
        folder.mkdir()
        processes = [start_rank(rank, 12, "iter,backward", world=2) for rank in range(2)]
        began_s = time.time()
        waits = calls_at(began_s, "all_reduce")
        os.utime(write_dump(folder, 0, waits, world=2), (began_s + 4, began_s + 4))
        os.utime(write_dump(folder, 1, [], world=2), (began_s + 4, began_s + 4))
        wait_until(lambda: snapshot(logs)["ranks"][0]["still_s"] > BETWEEN_S)
        while_alive = snapshot(logs, hung_after_s=5.0)["causes"]
        for process in processes:
            kill(process)
        after = snapshot(logs, hung_after_s=5.0)["causes"]
        assert [(one["kind"], one["ranks"], one["decided"]) for one in after] == [
            (one["kind"], one["ranks"], one["decided"]) for one in while_alive
        ]
        assert after[0]["ranks"] == [1]
        assert after[0]["waited_s"] > 5.0

    def test_after_ctrl_c_all_say_the_same(
        self, logs: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """KeyboardInterrupt has closed the stages; who of two was awaited is not known any more."""
        write_beats(logs, *(beat(rank, 12, closed=True, world_size=3) for rank in range(3)))
        for rank in range(3):
            write_rows(logs, rank, ("my_utils.run_end", "iterations=12,error=KeyboardInterrupt"))
        folder = logs / "flight_recorder"
        folder.mkdir()
        write_dump(folder, 0, calls("all_reduce", last="started"), world=3)
        for rank in (1, 2):
            write_dump(folder, rank, [], world=3)
        head, dumps, line, *_ = ended_standing_lines([str(logs)], HUNG_S)
        assert head.startswith("hung since ")
        assert line.startswith("! undecided: ranks 1-2 never entered all_reduce #1")
        why.main([str(logs)])
        assert capsys.readouterr().out.splitlines()[1:4] == [head, dumps, line]
        assert live_command.main([str(logs), "--hung", str(HUNG_S)]) == 3
        said = capsys.readouterr().out.splitlines()
        assert {head, dumps, line} <= set(said)

    def test_a_process_that_only_crashed_did_not_hang(
        self, logs: Path, start_rank: Start, capsys: pytest.CaptureFixture[str]
    ) -> None:
        kill(start_rank(0, 12, "iter,forward", world=1))
        why.main([str(logs)])
        said = capsys.readouterr().out
        assert said.startswith("ENDED in the middle of its work")
        assert "! rank 0 on node-a, step 12, in iter > forward" in said
        assert "hung since" not in said
        assert ended_standing_lines([str(logs)], HUNG_S) == []

    def test_a_run_that_ended_in_good_order(self, logs: Path) -> None:
        """Its last evaluation took a minute, so there are dumps still."""
        write_beats(logs, *(beat(rank, 12, closed=True) for rank in range(2)))
        folder = logs / "flight_recorder"
        folder.mkdir()
        write_dump(folder, 0, calls("all_reduce", last="started"))
        write_dump(folder, 1, [])
        assert ended_standing_lines([str(logs)], HUNG_S) == []
        write_rows(logs, 0, ("my_utils.run_end", "iterations=13,error=DistBackendError"))
        assert ended_standing_lines([str(logs)], HUNG_S)[2].startswith(
            "! rank 1 never entered all_reduce #1"
        )
