"""The words of a verdict by replay, and the same as data."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest

from my_utils.analysis.replay.judge import judge_operations
from my_utils.analysis.replay.operations import Operations
from my_utils.analysis.replay.result import ReplayVerdict

from ...support.plants import case_of
from ...support.replayed import operations_of
from ...support.schemas import loads_checked

pytestmark = pytest.mark.no_torch

HEADS = {
    ("ddp", "slow rank"): r"WAITING FOR rank \d ",
    ("tp_dp", "slow host"): r"WAITING FOR host node\d, 4 ranks ",
    ("pp", "slow stage"): r"WAITING FOR stage \d, ranks \d-\d ",
    ("hsdp", "slow link"): r"A SLOW LINK between ranks ",
    ("ddp", "outliers"): r"STEPS THAT STICK OUT on rank \d ",
    ("ep", "moving"): r"IMBALANCE THAT MOVES FROM RANK TO RANK ",
    ("tp", "change"): r"SLOWER SINCE step \d+ ",
    ("fsdp", "trend"): r"SLOWER OVER TIME ",
    ("3d", "checkpoint"): r"BOUND BY CHECKPOINT ",
}


def verdict_on(layout: str, plant: str) -> ReplayVerdict:
    return judge_operations(operations_of(case_of(layout, plant, 0.3, 8, 40, seed=2).program))


@pytest.mark.parametrize(("layout", "plant"), sorted(HEADS))
def test_each_claim_has_its_words_and_its_promise(layout: str, plant: str) -> None:
    verdict = verdict_on(layout, plant)
    lines = verdict.lines()
    assert re.match(HEADS[layout, plant], lines[0]), lines
    assert all(len(line) <= 100 for line in lines)
    text = "\n".join(lines)
    assert re.search(r"  would be \S+ ms a step \(1\.\d\d x; \S+ ms to \S+ ms\)", text), text
    assert "replayed unchanged: off by 0.000 %" in text


def test_seldom_steps_are_counted_and_their_period_is_said() -> None:
    text = "\n".join(verdict_on("3d", "checkpoint").lines())
    assert re.search(r"  in [34] steps, every 10 steps: \d+, ", text), text


def test_the_data_has_claim_role_interval_and_evidence() -> None:
    data = loads_checked("why", json.dumps(verdict_on("pp", "slow stage").as_data()))
    first = data["findings"][0]
    assert first["claim"] == "slow stage" and first["role"] == f"stage {first['pipeline_stage']}"
    low, high = first["saving_interval"]
    assert low <= first["share"] <= high
    assert first["evidence"][0]["took_ns"] > first["evidence"][0]["usual_ns"]
    assert 0.9 <= sum(one["share"] for one in first["evidence"]) <= 1.001
    assert data["replay"]["off_share"] <= 2e-4
    assert data["replay"]["unknown_share"] < 0.1
    assert data["replay"]["slowdown"] > 1


def test_a_run_of_two_steps_is_not_judged() -> None:
    operations = operations_of(case_of("ddp", None, 0.0, 2, 2, seed=2).program)
    verdict = judge_operations(operations)
    lines = verdict.lines()
    assert lines[0] == "NOT JUDGED: 2 steps, 3 are needed"
    assert lines[1].startswith("  to judge it: record more steps; ")


def test_time_between_operations_is_said_as_a_share() -> None:
    """A GPU that runs two operations a step, 3.5 ms apart."""
    begins = np.arange(20, dtype=np.int64) * 5_000_000
    step = np.arange(20) // 2
    nothing, none = np.zeros(20, np.int64), np.full(20, -1)
    kernels = (nothing, nothing, step, np.arange(20) % 2, begins, begins + 1_500_000, none, nothing)
    verdict = judge_operations(Operations(*kernels, ("first", "second")))
    text = "\n".join(verdict.lines())
    assert verdict.status == "ok"
    assert re.search(r"\n5\d % of a step, 3\.5 ms, passes between operations", text), text
