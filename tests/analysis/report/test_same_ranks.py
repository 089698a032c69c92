"""The tables of the report and its verdict count the same ranks, attempts and steps."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("pandas", reason="pandas is not installed")

from my_utils.analysis.report import Report, analyze
from my_utils.analysis.why import load_run

from ...support.planted_runs import Run
from ...support.run_csv import START_NS, RankCsv

pytestmark = pytest.mark.no_torch

RANKS = 4
STEP_MS = 30.0


def started_again(folder: Path, steps: tuple[int, ...] = (25, 40)) -> Path:
    """Under `my_utils run`: each start counts its steps from 0. A step runs `micro` twice, for 1 ms
    and for 3 ms. After its last iteration a start has another stage."""
    for rank in range(RANKS):
        csv = RankCsv(rank, RANKS)
        at = 0.0
        for attempt, count in enumerate(steps, start=1):
            csv.process(attempt, at)
            csv.note("run", {"device": "cpu", "attempt": attempt}, at)
            for step in range(count):
                csv.step(step, at, [("micro", 0, 1), ("micro", 1, 4), ("forward", 4, 4 + attempt)])
                at += STEP_MS
            csv.step(-1, at, [("save", 0, 5)])
            at += 1000
        csv.write(folder)
    return folder


def stage(report: Report, name: str) -> dict[str, float]:
    rows: list[dict[str, float]] = report.stages[report.stages["stage"] == name].to_dict("records")
    (row,) = rows
    return row


def test_all_attempts_of_a_run_count_through(tmp_path: Path) -> None:
    logs = started_again(tmp_path / "logs")
    report = analyze(logs)
    assert report.steps["step"].tolist() == load_run(logs).steps.tolist() == list(range(65))
    assert stage(report, "forward")["count"] == 65 * RANKS
    assert stage(report, "micro")["count"] == 2 * 65 * RANKS
    assert stage(report, "forward")["total_s"] == pytest.approx((25 + 2 * 40) * RANKS * 1e-3)
    assert report.ranks["last_step"].tolist() == [64] * RANKS
    assert "save" not in set(report.stages["stage"])


def test_steps_of_a_run_that_was_started_again(tmp_path: Path) -> None:
    """The second start is slower, and the range lies in both."""
    report = analyze(started_again(tmp_path / "logs"), steps=(20, 30))
    assert report.steps["step"].tolist() == list(range(20, 30))
    forward, micro = stage(report, "forward"), stage(report, "micro")
    assert (forward["count"], micro["count"]) == (10 * RANKS, 2 * 10 * RANKS)
    assert forward["total_s"] == pytest.approx((5 + 2 * 5) * RANKS * 1e-3)
    assert (forward["p50_ms"], forward["max_ms"]) == pytest.approx((1.0, 2.0), rel=0.01)
    assert micro["mean_ms"] == pytest.approx(2.0)
    by_rank = report.stages_by_rank
    assert by_rank["count"].tolist() == [10, 20] * RANKS
    assert report.verdict is not None and report.verdict.last_step == 29


def test_steps_that_are_asked_for_leave_stages_out(tmp_path: Path) -> None:
    for rank in range(RANKS):
        csv = RankCsv(rank, RANKS)
        csv.process()
        for step in range(20):
            csv.step(step, step * STEP_MS, [("forward", 0, 2), ("eval", 2, 9)][: 1 + (step > 15)])
        csv.write(tmp_path)
    report = analyze(tmp_path, steps=(5, 15))
    assert report.stages["stage"].tolist() == ["forward"]
    assert stage(report, "forward")["count"] == 10 * RANKS
    assert report.stages_by_rank["stage"].tolist() == ["forward"] * RANKS


def test_stages_of_other_threads_are_in_the_tables(tmp_path: Path) -> None:
    """One of them runs on both threads, and is one stage."""
    for rank in range(RANKS):
        csv = RankCsv(rank, RANKS)
        csv.process()
        for step in range(10):
            at = step * STEP_MS
            csv.stage("forward", step, at, at + 8, tag="train", tid=5)
            csv.stage("copy", step, at + 8, at + 9, tag="train", tid=5)
            csv.stage("fetch", step, at + 1, at + 29, tag="train", tid=9)
            csv.stage("copy", step, at + 11, at + 14, tag="train", tid=9)
        csv.write(tmp_path)
    report = analyze(tmp_path)
    assert report.stages["stage"].tolist() == ["copy", "fetch", "forward"]
    assert report.stages["count"].tolist() == [20 * RANKS, 10 * RANKS, 10 * RANKS]
    copy = stage(report, "copy")
    assert copy["total_s"] == pytest.approx(10 * RANKS * 4e-3)
    assert copy["max_ms"] == pytest.approx(3.0)
    assert copy["step_mean_ms"] == pytest.approx(4.0)
    # A step is that of the verdict: of the training thread, to the begin of the next one.
    assert report.steps["median_ms"].tolist() == pytest.approx([STEP_MS] * 9 + [9.0])
    assert list(load_run(tmp_path).stages) == ["copy", "forward"]


def test_stages_of_a_pipeline_that_the_run_names(tmp_path: Path) -> None:
    """`my_utils run` writes it down in a separate row, without a label."""
    for rank in range(8):
        random = np.random.default_rng(rank)
        csv = RankCsv(rank, 8)
        csv.process()
        csv.note("run", {"device": "cpu", "pipeline_stage": rank // 7})
        for step in range(40):
            took = (20.0 if rank < 7 else 40.0) * (1 + 0.01 * random.standard_normal())
            begin = step * 100.0 + 9 * random.random()
            csv.step(step, begin, [("input", 0, 3 * random.random()), ("forward", 4, 4 + took)])
        csv.write(tmp_path)
    assert analyze(tmp_path).stragglers == []


def test_ranks_that_the_last_attempt_has_no_more(tmp_path: Path) -> None:
    logs = Run(steps=40).write(tmp_path / "logs")
    Run(ranks=6, steps=40, first_step=30, attempt=2, start_ns=START_NS + 10**12).write(logs)
    report = analyze(logs)
    assert report.ranks["rank"].tolist() == load_run(logs).ranks.tolist() == list(range(6))
    assert "ranks 6-7 are left out: the last attempt has fewer ranks" in report.problems


@pytest.mark.parametrize("seed", range(4))
def test_the_warm_up_is_that_of_the_verdict(seed: int, tmp_path: Path) -> None:
    run = Run(steps=60, seed=seed).slower(3, "forward", steps=slice(0, 2 * seed))
    report = analyze(run.write(tmp_path / "logs"))
    assert report.verdict is not None
    assert report.run["warmup"] == report.verdict.warmup == max(2 * seed, 1)


def recorded_meetings(folder: Path, members: tuple[str, ...]) -> Path:
    """Rank 1 takes 8 ms longer in `forward`; the ranks of a group leave `collective` together."""
    for rank in range(RANKS):
        csv = RankCsv(rank, RANKS)
        csv.process()
        csv.note("run", {"device": "cpu"})
        mine = next(one for one in members if str(rank) in one)
        csv.note("sync", {"stage": "collective", "members": mine, "kind": "collective"})
        slow = 8 if rank == 1 else 0
        end = 20 if "1" in mine else 12
        for step in range(30):
            csv.step(
                step, step * STEP_MS, [("forward", 0, 10 + slow), ("collective", 10 + slow, end)]
            )
        csv.write(folder)
    return folder


@pytest.mark.parametrize("members, waiting", [(("0,1,2,3",), [0, 2, 3]), (("0,1", "2,3"), [0])])
def test_ranks_wait_for_those_that_they_meet(
    members: tuple[str, ...], waiting: list[int], tmp_path: Path
) -> None:
    report = analyze(recorded_meetings(tmp_path / "logs", members))
    assert report.run["synchronising"] == ["collective"]
    waited = report.ranks.set_index("rank")["waited_s"]
    assert waited[waited > 1e-6].index.tolist() == waiting
    assert waited[0] == pytest.approx(30 * 8e-3)
    costly = report.waits[report.waits["cost_s"] > 1e-6]
    assert set(costly["rank"]) == {1} and set(costly["stage"]) == {"forward"}
    assert costly["lost_ms"].tolist() == pytest.approx([8.0] * 30)
    assert len(report.waits) == 30 * len(members)


def test_a_rank_alone_waits_for_those_that_it_met(tmp_path: Path) -> None:
    """In two groups, of which one is shown."""
    logs = recorded_meetings(tmp_path / "logs", ("0,1", "2,3"))
    whole, shown = analyze(logs), analyze(logs, ranks=[0])
    assert shown.ranks.equals(whole.ranks[whole.ranks["rank"] == 0])
    assert shown.run["waited_s"] == pytest.approx(30 * 8e-3)
    assert shown.run["synchronising"] == whole.run["synchronising"]
    assert set(shown.waits["rank"]) == {1} and len(shown.waits) == len(whole.waits) / 2
