"""Files into arrays: what `my_utils run` records, what users of MyTimer record, old and damaged."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from my_utils.analysis.verdict.load import NothingToJudge
from my_utils.analysis.verdict.rank_files import find_rank_files, read_rank
from my_utils.analysis.why import SyncPoint, judge, load_run

from ...conftest import RunPython
from ...support.planted_runs import SYNC, Run
from ...support.run_csv import RankCsv

pytestmark = pytest.mark.no_torch

STAGES = [
    ("input", 0.0, 2.0),
    ("forward", 2.0, 5.0),
    ("backward", 5.5, 9.0),
    ("optimizer", 9.0, 9.5),
]
STEP_MS = 10.0


def rank_csv(rank: int = 0, world_size: int = 2, steps: int = 30) -> RankCsv:
    csv = RankCsv(rank, world_size, f"node{rank}")
    csv.process()
    csv.note("run", {"script": "train.py", "device": "cpu", "attempt": 1, "run_id": "x"})
    csv.note("sync", {"stage": "backward", "kind": "ddp", "members": "0-1"})
    csv.note("workload", {"num_workers": 4, "batch_size": 32})
    for step in range(steps):
        csv.step(step, step * STEP_MS, STAGES)
        at = step * STEP_MS + 9.9
        csv.counter("memory", step, at, {"rss_bytes": 1e9 + step, "allocated_bytes": 5e8})
        csv.counter("batch", step, at, {"samples": 32, "tokens": 100 + step})
    return csv


def test_what_a_run_records(tmp_path: Path) -> None:
    for rank in (1, 0):
        rank_csv(rank).write(tmp_path)
    run = load_run(tmp_path)
    assert run.ranks.tolist() == [0, 1] and list(run.hosts) == ["node0", "node1"]
    assert run.world_size == 2 and run.device == "cpu" and run.gpu is None
    assert sorted(run.stages) == ["backward", "forward", "input", "optimizer"]
    assert run.steps.tolist() == list(range(30))
    assert run.sync_points == [SyncPoint("backward", (0, 1), "ddp")]
    assert run.workload["num_workers"] == "4"
    at = {name: number for number, name in enumerate(run.stages)}
    for name, begin, end in STAGES:
        wanted = np.arange(30) * STEP_MS * 1e6
        assert np.allclose(run.begins[0, :, at[name]], wanted + begin * 1e6)
        assert np.allclose(run.ends[1, :, at[name]], wanted + end * 1e6)
        assert np.allclose(run.totals[..., at[name]], (end - begin) * 1e6)
    assert np.allclose(run.step_ns[:, :-1], STEP_MS * 1e6)
    assert np.allclose(run.step_ns[:, -1], 9.5e6)
    assert np.allclose(run.counters["rss_bytes"][1], 1e9 + np.arange(30))
    assert np.allclose(run.counters["tokens"][0], 100 + np.arange(30))
    assert list(run.problems) == [] and list(run.ended) == [True, True] and not run.running


def test_counters_are_there_where_a_rank_recorded_them(tmp_path: Path) -> None:
    """And of the steps in which it did; the last value of a step counts."""
    for rank in range(2):
        csv = rank_csv(rank)
        for step in range(0, 30, 10) if rank else ():
            csv.counter("host", step, step * STEP_MS, {"gc0_us": 7, "not_known": 1})
            csv.counter("host", step, step * STEP_MS, {"gc0_us": 8})
        csv.write(tmp_path)
    counters = load_run(tmp_path).counters
    assert set(counters) == {"rss_bytes", "allocated_bytes", "samples", "tokens", "gc0_us"}
    assert np.isnan(counters["gc0_us"][0]).all()
    assert np.flatnonzero(np.isfinite(counters["gc0_us"][1])).tolist() == [0, 10, 20]
    assert (counters["gc0_us"][1, ::10] == 8).all()


def test_what_all_rows_share_is_in_memory_once(tmp_path: Path) -> None:
    rank_csv().write(tmp_path)
    (file_set,), _ = find_rank_files([tmp_path])
    stages = read_rank(file_set).stages
    assert {len(column) for column in stages.values()} == {30 * len(STAGES)}
    shared = {name for name, column in stages.items() if column.strides == (0,)}
    assert shared == {"tid", "tag", "attempt", "cuda_ms", "cuda_begin_ns", "cuda_error_ns"}
    assert stages["tid"].tolist() == [1] * 30 * len(STAGES)


def test_ranks_that_say_the_same_of_their_meetings(tmp_path: Path) -> None:
    """A meeting is one, however many ranks wrote it down and in however many words."""
    for rank in range(4):
        csv = rank_csv(rank, 4)
        pair = f"{rank // 2 * 2}-{rank // 2 * 2 + 1}"
        csv.note("sync", {"stage": "forward", "kind": "collective", "members": pair})
        csv.note("sync", {"stage": "backward", "kind": "ddp", "members": "0,1"})
        csv.note("sync", {"stage": "input", "kind": "unheard of", "members": "0-3"})
        csv.write(tmp_path)
    assert load_run(tmp_path).sync_points == [
        SyncPoint("backward", (0, 1), "ddp"),
        SyncPoint("forward", (0, 1), "collective"),
        SyncPoint("forward", (2, 3), "collective"),
    ]


def test_numbers_that_no_rank_has_are_no_members_and_no_places(tmp_path: Path) -> None:
    for rank, label in enumerate(("pp=1", "pp=99999999999999999999")):
        csv = RankCsv(rank, 2)
        csv.note("process", {"pid": 1, "rank": rank, "world_size": 2, "label": label})
        csv.note("run", {"device": "cpu", "pipeline_stage": "9" * 20 if rank == 0 else "²"})
        csv.note("sync", {"stage": "backward", "kind": "ddp", "members": "0-2000000000"})
        csv.step(0, 0.0, STAGES)
        csv.write(tmp_path)
    run = load_run(tmp_path)
    assert run.sync_points == [SyncPoint("backward", (), "ddp")]
    assert run.peers is not None and run.peers.tolist() == [1, 0]


def test_a_process_that_is_alone(tmp_path: Path) -> None:
    csv = RankCsv()
    csv.process()
    csv.note("run", {"device": "cpu"})
    csv.note("sync", {"stage": "", "kind": "none"})
    csv.step(0, 0.0, STAGES)
    csv.write(tmp_path)
    assert load_run(tmp_path).sync_points == []


def test_what_comes_after_the_last_iteration_is_no_step(tmp_path: Path) -> None:
    """It has the step -1, and without this rule it was taken for the first one."""
    for rank in range(2):
        csv = rank_csv(rank)
        csv.step(-1, 30 * STEP_MS, STAGES[:1])
        csv.write(tmp_path)
    assert load_run(tmp_path).steps.tolist() == list(range(30))


def test_ranks_and_steps_that_are_asked_for(tmp_path: Path) -> None:
    for rank in range(3):
        rank_csv(rank, 3).write(tmp_path)
    run = load_run(tmp_path, ranks=[0, 2], steps=(10, 20))
    assert run.ranks.tolist() == [0, 2] and run.steps.tolist() == list(range(10, 20))
    with pytest.raises(NothingToJudge, match="no step of 90:95"):
        load_run(tmp_path, steps=(90, 95))
    with pytest.raises(NothingToJudge, match="no rank was found"):
        load_run(tmp_path, ranks=[7])


def test_several_folders_are_one_run(tmp_path: Path) -> None:
    folders = [rank_csv(rank).write(tmp_path / f"node{rank}") for rank in range(2)]
    assert load_run(folders).ranks.tolist() == [0, 1]
    verdict = judge(load_run(folders[:1]))
    assert verdict.reason == "no files of rank 1 of 2"


def test_both_attempts_of_a_run_count(tmp_path: Path) -> None:
    """The second start counts its steps from 0 again, and erases nothing."""
    for rank in range(2):
        csv = rank_csv(rank)
        csv.process(attempt=2, ms=1000.0)
        for step in range(25):
            csv.step(step, 1000 + step * STEP_MS, STAGES)
        csv.write(tmp_path)
    run = load_run(tmp_path)
    assert run.steps.tolist() == list(range(55)) and run.attempts == 2
    assert np.allclose(run.begins[0, 30, 0] - run.begins[0, 0, 0], 1e9)


def test_steps_done_again_by_a_resumed_run(tmp_path: Path) -> None:
    csv = rank_csv(0, 1)
    csv.process(attempt=2, ms=1000.0)
    for step in range(28, 40):
        csv.step(step, 1000 + step * STEP_MS, STAGES)
    csv.write(tmp_path)
    assert load_run(tmp_path).steps.tolist() == list(range(30 + 12))


def test_without_rows_of_a_run_a_start_from_the_beginning_is_another_run(tmp_path: Path) -> None:
    Run(ranks=2, steps=40).write(tmp_path / "logs")
    later = 10**12
    Run(ranks=2, steps=25, attempt=2, start_ns=1_750_000_000_000_000_000 + later).write(
        tmp_path / "logs"
    )
    assert load_run(tmp_path / "logs").steps.tolist() == list(range(25))


def test_gpu_times(tmp_path: Path) -> None:
    csv = RankCsv()
    csv.process()
    for step in range(3):
        begin = step * 10.0
        csv.stage("input", step, begin, begin + 1)
        csv.stage("forward", step, begin + 1, begin + 2, gpu=(begin + 1.5, begin + 6))
        csv.stage("forward", step, begin + 2, begin + 3, gpu=(begin + 6, begin + 8))
    csv.write(tmp_path)
    run = load_run(tmp_path)
    assert run.device == "cuda" and run.gpu is not None
    forward = list(run.stages).index("forward")
    begins = np.arange(3) * 10e6
    assert np.allclose(run.gpu.begins[0, :, forward], begins + 1.5e6)
    assert np.allclose(run.gpu.ends[0, :, forward], begins + 8e6)
    assert np.allclose(run.gpu.totals[0, :, forward], 6.5e6)
    assert np.isnan(run.gpu.totals[0, :, 1 - forward]).all()
    assert np.allclose(run.gpu.error_ns, 1e4)


@pytest.mark.parametrize("rotations", [1, 3])
@pytest.mark.parametrize("named", ["", "profile_rank_0.csv"], ids=["folder", "file"])
def test_rotations_between_listing_and_reading_lose_nothing(
    named: str, rotations: int, tmp_path: Path
) -> None:
    """The file has another name by then, and its old one is a later file's."""

    def write(first: int) -> None:
        csv = RankCsv()
        csv.process()
        for step in range(first, first + 10):
            csv.step(step, step * STEP_MS, STAGES)
        csv.write(tmp_path)

    def rotate(part: int) -> None:
        current = tmp_path / "profile_rank_0.csv"
        current.rename(tmp_path / f"profile_rank_0.part{part:04d}.csv")
        write(10 * part)

    write(0)
    rotate(1)
    (file_set,), problems = find_rank_files([tmp_path / named])
    for part in range(2, 2 + rotations):
        rotate(part)
    rank = read_rank(file_set)
    assert (problems, rank.metadata.errors) == ([], [])
    assert np.unique(rank.stages["step"]).tolist() == list(range(20))


@pytest.mark.parametrize(
    "wrong", ["cuda_ms=inf", "cuda_ms=1e300", "cuda_ms=-5", "cuda_ms=nan", "cuda_ts=9e9"]
)
def test_gpu_times_that_are_none_do_not_count(wrong: str, tmp_path: Path) -> None:
    csv = RankCsv()
    csv.process()
    for step in range(30):
        begin = step * 10.0
        csv.stage("forward", step, begin, begin + 1, gpu=(begin + 0.5, begin + 8))
    key = wrong.partition("=")[0]
    csv.rows[12] = re.sub(f'{key}=[^,"]*', wrong, csv.rows[12])
    assert wrong in csv.rows[12]
    csv.write(tmp_path)
    run = load_run(tmp_path)
    assert run.gpu is not None and run.gpu.own is not None
    assert np.isnan(run.gpu.totals[0, :, 0]).tolist() == [step == 5 for step in range(30)]
    assert np.allclose(np.delete(run.gpu.own[0, :, 0], [4, 5]), 7.5e6)
    assert judge(run).status != "not judged"


def test_stages_of_other_threads_do_not_count(tmp_path: Path) -> None:
    csv = RankCsv()
    csv.process()
    for step in range(3):
        csv.stage("forward", step, step * 10, step * 10 + 4, tag="train", tid=5)
        csv.stage("fetch", step, step * 10, step * 10 + 9.9, tag="train", tid=9)
    csv.write(tmp_path)
    assert list(load_run(tmp_path).stages) == ["forward"]


def test_timers_of_one_thread_never_count_a_moment_twice(tmp_path: Path) -> None:
    """The user's own timer nests among the run's stages, and stands beside them."""
    csv = RankCsv()
    csv.process()
    csv.note("run", {"device": "cpu"})
    for step in range(4):
        begin = step * 10.0
        csv.stage("forward", step, begin, begin + 4)
        csv.stage("backward", step, begin + 5, begin + 8)
        csv.stage("attention", step, begin + 1, begin + 2, tag="own")
        log = csv.stage("log", step, begin + 8, begin + 9, tag="own")
        csv.stage("inner", step, begin + 8.2, begin + 8.4, tag="own", parent=log)
    csv.in_order().write(tmp_path)
    run = load_run(tmp_path)
    assert list(run.stages) == ["backward", "forward", "log", "log/inner"]
    assert np.allclose(run.totals.sum(2), 8e6)


def test_small_stages_count_into_those_around_them(tmp_path: Path) -> None:
    csv = RankCsv()
    csv.process()
    for step in range(3):
        begin = step * 100.0
        forward = csv.stage("forward", step, begin, begin + 90)
        block = csv.stage("block", step, begin, begin + 50, parent=forward)
        for number in range(60):
            at = begin + 0.1 * number
            csv.stage(f"tiny{number}", step, at, at + 0.1, parent=block)
    csv.in_order().write(tmp_path)
    run = load_run(tmp_path)
    assert list(run.stages) == ["forward", "forward/block"]
    assert np.allclose(run.totals[0], [[40e6, 50e6]] * 3)


def test_steps_that_were_not_recorded_do_not_lengthen_those_before(tmp_path: Path) -> None:
    csv = RankCsv()
    csv.process()
    for number, step in enumerate((0, 10, 20, 21)):
        csv.step(step, 1000.0 * number, STAGES)
    csv.write(tmp_path)
    assert np.allclose(load_run(tmp_path).step_ns, [[9.5e6, 9.5e6, 1000e6, 9.5e6]])


def test_damaged_files_are_told_and_the_rest_is_judged(tmp_path: Path) -> None:
    for rank in range(3):
        rank_csv(rank, 3).write(tmp_path)
    path = tmp_path / "profile_rank_1.csv"
    path.write_text(path.read_text() + "1750000000.5,x,y,not a step,forward,END,1,\n")
    (tmp_path / "profile_rank_2.csv").write_bytes(b"no,profile\n1,2\n")
    run = load_run(tmp_path)
    problems = "\n".join(run.problems)
    assert "rank 1 has rows that could not be understood" in problems
    assert "rank 2: no stage has ended in the files" in problems
    assert judge(run).reason == "no files of rank 2 of 3"


def test_what_holds_nothing(tmp_path: Path) -> None:
    with pytest.raises(NothingToJudge, match="holds no profile_rank_"):
        load_run(tmp_path)
    with pytest.raises(NothingToJudge, match="no such file or directory"):
        load_run(tmp_path / "nowhere")
    other = tmp_path / "profile_rank_3.csv"
    other.write_text("step,loss\n1,0.5\n")
    with pytest.raises(NothingToJudge, match=r"rank 3: .* has no column 'timestamp_unix'$"):
        load_run(tmp_path)


def test_the_command_of_the_run(tmp_path: Path) -> None:
    rank_csv(0, 1).write(tmp_path)
    (tmp_path / "run.json").write_text('{"version": 1, "command": ["torchrun", "train.py", "a b"]}')
    assert load_run(tmp_path).command == ("torchrun", "train.py", "a b")
    (tmp_path / "run.json").write_text("[1, 2")
    assert load_run(tmp_path).command == ()


def test_planted_files_are_read_as_they_were_written(tmp_path: Path) -> None:
    planted = Run(ranks=4, steps=50).slower(6, "data", rank=1)
    run = load_run(planted.write(tmp_path / "logs"))
    at = {name: number for number, name in enumerate(run.stages)}
    for number, name in enumerate(planted.stages):
        took = run.totals[..., at[f"iter/{name}"]]
        assert np.allclose(took, planted.took_ns[..., number], atol=2)
    waits = planted.entries_ns.max(0) - planted.entries_ns
    found = run.totals[..., at[f"iter/{SYNC}"]]
    assert np.allclose(found, waits + 1_000_000, atol=60_000)
    verdict = judge(run)
    one = verdict.findings[0]
    assert (one.kind, one.ranks, one.stage) == ("input", (1,), "iter/data")
    assert verdict.inferred == (f"iter/{SYNC}",)


PROGRAM = """
import sys, threading, time
from my_utils import GlobalLogger, MyTimer
GlobalLogger().setup(sys.argv[1], rank=int(sys.argv[2]), world_size=1, console=False)
timer = MyTimer(tag="train")
for step in range(30):
    timer.set_step(step)
    with timer.time_stage("data"):
        time.sleep(0.02)
    with timer.time_stage("forward"):
        time.sleep(0.002)
    timer.step()
"""


def test_files_of_a_real_process(run_python: RunPython, tmp_path: Path) -> None:
    done = run_python("-c", PROGRAM, str(tmp_path / "logs"), "0")
    assert done.returncode == 0, done.stderr
    run = load_run(tmp_path / "logs")
    assert list(run.stages) == ["data", "forward"] and run.steps.tolist() == list(range(30))
    assert list(run.ended) == [True] and not run.running
    assert (run.totals[0, :, 0] >= 20e6).all()
    verdict = judge(run)
    assert (verdict.findings[0].kind, verdict.findings[0].stage) == ("input", "data")
