"""Clocks that differ: put right by collectives, and not judged where that cannot be."""

from __future__ import annotations

import numpy as np
import pytest

from my_utils.analysis.replay.judge import judge_operations
from my_utils.analysis.replay.operations import Operations

from ...support.plants import case_of
from ...support.replayed import operations_of, outcome

pytestmark = pytest.mark.no_torch


def skewed(operations: Operations) -> Operations:
    shift = np.random.default_rng(1).integers(-(10**8), 10**8, 8)[operations.rank]
    moved = operations.kept(np.arange(len(operations)))
    moved.begin_ns, moved.end_ns = moved.begin_ns + shift, moved.end_ns + shift
    return moved


@pytest.mark.parametrize("layout", ["ddp", "tp_dp", "hsdp", "ep"])
def test_clocks_of_ranks_that_meet_in_collectives_are_put_right(layout: str) -> None:
    case = case_of(layout, "slow rank", 0.2, 8, 40, seed=5)
    verdict = judge_operations(skewed(operations_of(case.program)))
    assert outcome(case, verdict) == "right", verdict.lines()
    assert case.truth is not None
    assert verdict.findings[0].share == pytest.approx(case.truth.saves, abs=0.02)
    assert any(note.startswith("clocks differ by up to") for note in verdict.notes)


def test_stages_that_only_send_to_each_other_are_not_judged() -> None:
    case = case_of("pp", "slow stage", 0.2, 8, 40, seed=5)
    verdict = judge_operations(skewed(operations_of(case.program)))
    assert verdict.status == "not judged"
    assert "clocks" in str(verdict.reason)
