"""Ranks that are slow beyond chance, though too little for a loss: worth knowing, and no fault."""

from __future__ import annotations

import numpy as np
import pytest

from my_utils.analysis.verdict.result import Finding, Verdict
from my_utils.analysis.why import SyncPoint, judge

from ...support.array_runs import ArrayRun

pytestmark = pytest.mark.no_torch

MEETS = [SyncPoint("backward", (), "ddp")]


def slower(verdict: Verdict) -> list[Finding]:
    return [one for one in verdict.findings if one.kind == "slower rank"]


def test_one_of_a_thousand_ranks_that_costs_half_a_percent() -> None:
    run = ArrayRun(ranks=1000, steps=60, noise=0.01).more("forward", 0.6, rank=417)
    verdict = judge(run.data(sync_points=MEETS))
    (one,) = slower(verdict)
    assert (one.ranks, one.stage, one.since_step) == ((417,), "forward", None)
    assert verdict.status == "ok" and verdict.costly == []
    assert one.detail["score"] > 3 * one.detail["peer_score"]
    assert "  rank 417 takes " in "\n".join(verdict.lines())


@pytest.mark.parametrize("points", [MEETS, []])
def test_what_it_costs_is_what_the_rank_takes_longer(points: list[SyncPoint]) -> None:
    run = ArrayRun(ranks=8, steps=100, noise=0.001, meets=[one.stage for one in points])
    run.more("forward", 1.0, rank=2)
    (one,) = slower(judge(run.data(sync_points=points)))
    assert one.cost_ns_a_step == pytest.approx(1e6, rel=0.05)
    assert one.saves_ns_a_step == one.cost_ns_a_step


def test_single_steps_of_a_rank() -> None:
    steps = [31, 47, 60, 82]
    run = ArrayRun(ranks=8, steps=100).more("forward", 15, rank=3, steps=steps)
    (one,) = slower(judge(run.data(sync_points=MEETS)))
    assert (one.ranks, one.stage) == ((3,), "forward")
    assert one.detail["slow_steps"] == steps and one.detail["hiccups"] == len(steps)
    whole = one.detail["hiccups"] * one.detail["hiccup_ns"]
    assert whole == pytest.approx(4 * 15e6, rel=0.1)


def test_since_a_step() -> None:
    run = ArrayRun(ranks=8, steps=120).more("forward", 1.0, rank=5, steps=slice(60, None))
    (one,) = slower(judge(run.data(sync_points=MEETS)))
    assert one.ranks == (5,) and one.since_step in (59, 60, 61)


def test_a_loss_is_not_said_twice() -> None:
    run = ArrayRun(ranks=8, steps=120).more("forward", 20, rank=5)
    verdict = judge(run.data(sync_points=MEETS))
    assert [one.ranks for one in verdict.costly] == [(5,)]
    assert slower(verdict) == []


def test_a_finding_without_a_stage_is_told_where() -> None:
    """Two ranks have hiccups, each in another stage: together they are a loss in no stage."""
    run = ArrayRun(ranks=8, steps=120)
    run.more("forward", 90, rank=2, steps=slice(10, 120, 11))
    run.more("input", 90, rank=5, steps=slice(13, 120, 11))
    verdict = judge(run.data(sync_points=MEETS))
    (loss,) = verdict.costly
    assert (loss.kind, loss.ranks, loss.stage) == ("host hiccups", (2, 5), None)
    assert {(one.ranks, one.stage) for one in slower(verdict)} == {
        ((2,), "forward"),
        ((5,), "input"),
    }
    assert sum(one.saves_ns_a_step for one in slower(verdict)) <= 1.05 * loss.saves_ns_a_step
    text = "\n".join(verdict.lines())
    assert "rank 2 takes " in text and "rank 5 takes " in text


@pytest.mark.parametrize("ranks", [2, 3])
def test_few_ranks_have_no_exception(ranks: int) -> None:
    run = ArrayRun(ranks=ranks, steps=100).more("forward", 1.0, rank=1)
    assert slower(judge(run.data(sync_points=MEETS))) == []


def test_a_fleet_in_which_each_rank_differs_has_none() -> None:
    named = 0
    for seed in range(20):
        run = ArrayRun(ranks=64, seed=seed, noise=0.02, steps=60)
        run.took_ns *= 1 + 0.03 * run.random.standard_normal((64, 1, len(run.stages) + 1))
        run.took_ns[run.random.random(run.took_ns.shape) < 0.002 * (seed % 3)] *= 1.5
        named += len(slower(judge(run.data(sync_points=MEETS))))
    assert named == 0


def test_stages_after_the_last_meeting_delay_the_next_step() -> None:
    run = ArrayRun(ranks=8, steps=100, noise=0.001)
    tail = run.stages[-1]
    run.more(tail, 10, rank=1, steps=[33, 52, 71])
    (one,) = slower(judge(run.data(sync_points=MEETS)))
    assert one.stage == tail
    whole = one.detail["hiccups"] * one.detail["hiccup_ns"]
    assert whole == pytest.approx(3 * 10e6, rel=0.1)
    assert np.isclose(whole, one.cost_ns_a_step * 99)
