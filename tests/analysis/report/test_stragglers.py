"""Stragglers of findings that no test writes files for: those of a replay, and of several ranks."""

from __future__ import annotations

import pytest

pytest.importorskip("pandas", reason="pandas is not installed")

from my_utils.analysis.report.judged import meetings_in
from my_utils.analysis.report.stragglers import Straggler, find_stragglers
from my_utils.analysis.report.waits import measure_waits
from my_utils.analysis.verdict.result import Verdict
from my_utils.analysis.why import Finding, ReplayFinding, ReplayVerdict, SyncPoint

from ...support.array_runs import ArrayRun

pytestmark = pytest.mark.no_torch

STEPS = 40
LATE = [12, 20, 33]


def named(verdict: Verdict) -> list[Straggler]:
    run = ArrayRun(ranks=4, steps=STEPS, noise=0.001).more("forward", 30, rank=1, steps=LATE)
    data = run.data(sync_points=[SyncPoint("backward", (), "ddp")])
    return find_stragglers(data, verdict, measure_waits(data, meetings_in(data, 0), 0))


def judged(kind: type[Verdict], *findings: Finding) -> Verdict:
    return kind("found", list(findings), judged_ranks=4, judged_steps=STEPS, first_step=0,
                last_step=STEPS - 1)  # fmt: skip


@pytest.mark.parametrize("stage", ["forward", "aten::mm"])
def test_a_rank_that_a_replay_names(stage: str) -> None:
    """By an operation, which need not be a stage of the run."""
    finding = ReplayFinding("straggler", ranks=(1,), stage=stage, saves_ns_a_step=2e6,
                            claim="slow rank", steps=tuple(LATE))  # fmt: skip
    (one,) = named(judged(ReplayVerdict, finding))
    assert (one.rank, one.stage, one.kind, one.steps) == (1, stage, "intermittent", LATE)
    assert one.saved_s == pytest.approx(2e6 * STEPS * 1e-9)
    assert one.cost_s == pytest.approx(3 * 3 * 30e-3, rel=0.05)


def test_a_slow_link_is_no_slow_rank() -> None:
    finding = ReplayFinding("communication", ranks=(1, 2), stage="send", claim="slow link")
    assert named(judged(ReplayVerdict, finding)) == []


def test_ranks_that_wait_are_no_slow_ranks() -> None:
    finding = Finding("communication", (0, 2), stage="backward", detail={"took_ns": 1e6})
    growing = Finding("memory grows", (1,), detail={"what": "memory"})
    assert named(judged(Verdict, finding, growing)) == []


def test_a_finding_without_a_stage_gives_way_to_one_with() -> None:
    hiccups = Finding("host hiccups", (1, 3), saves_ns_a_step=2e6,
                      detail={"hiccups": 3, "hiccup_ns": 3e7, "slow_steps": LATE})  # fmt: skip
    scores = {"slower": 1.2, "score": 50.0, "peer_score": 2.0, "also": []}
    where = Finding("slower rank", (1,), stage="forward", saves_ns_a_step=1e6, detail=scores)
    found = named(judged(Verdict, hiccups, where))
    assert [(one.rank, one.stage) for one in found] == [(1, "forward"), (3, "")]
    assert (found[0].score, found[0].slower_percent) == (50.0, 120.0)
    assert found[1].cost_s == pytest.approx(0.0, abs=1e-3)
