"""What ranks wait for one another, by the shortest stay in a meeting."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from my_utils.analysis.verdict.waits import NOBODY, group_waits, waits_by_stage
from my_utils.analysis.why import RunData, SyncPoint

from ...support.array_runs import ArrayRun

pytestmark = pytest.mark.no_torch


def run_of(stays: np.ndarray, points: list[SyncPoint], **changes: object) -> RunData:
    """stays: rank × step, what a rank stays in `backward`, NaN where it does not run it."""
    ranks, steps = stays.shape
    run = ArrayRun(ranks=ranks, steps=steps).data(sync_points=points, **changes)
    at = list(run.stages).index("backward")
    run.totals[..., at] = np.nan_to_num(stays)
    run.begins[..., at] = np.where(np.isfinite(stays), run.begins[..., at], np.nan)
    return run


def test_the_rank_that_stays_least_is_waited_for() -> None:
    run = run_of(np.array([[9.0, 5.0], [2.0, 8.0], [5.0, 6.0]]), [SyncPoint("backward")])
    (group,) = group_waits(run, ["backward"])
    assert group.wait_ns().tolist() == [[7.0, 0.0], [0.0, 3.0], [3.0, 1.0]]
    assert (group.last().tolist(), group.late_ns().tolist()) == ([1, 0], [3.0, 1.0])
    assert group.shortest_ns().tolist() == [2.0, 5.0]
    assert waits_by_stage(run, ["backward"])["backward"].sum() == 14.0
    assert waits_by_stage(run, ["forward"]).keys() == {"forward"}
    assert waits_by_stage(run, []) == {}


def test_a_rank_without_the_stage_waits_for_nobody() -> None:
    """Nor for it, and nobody meets in the second step."""
    stays = np.array([[9.0, 5.0], [2.0, np.nan], [np.nan, np.nan]])
    (group,) = group_waits(run_of(stays, [SyncPoint("backward")]), ["backward"])
    assert group.wait_ns().tolist() == [[7.0, 0.0], [0.0, 0.0], [0.0, 0.0]]
    assert group.last().tolist() == [1, NOBODY]
    assert group.late_ns().tolist() == [7.0, 0.0]


def test_each_rank_waits_for_those_that_it_meets() -> None:
    stays = np.array([[9.0], [2.0], [5.0], [6.0]])
    points = [SyncPoint("backward", (0, 1)), SyncPoint("backward", (2, 3))]
    waits = waits_by_stage(run_of(stays, points), ["backward"])["backward"]
    assert waits.ravel().tolist() == [7.0, 0.0, 0.0, 1.0]


def test_in_a_pipeline_ranks_of_one_stage_are_compared() -> None:
    stays = np.array([[9.0], [2.0], [50.0], [60.0]])
    run = run_of(stays, [SyncPoint("backward", (), "pipeline")], peers=np.array([0, 0, 1, 1]))
    assert waits_by_stage(run, ["backward"])["backward"].ravel().tolist() == [7.0, 0.0, 0.0, 10.0]


@settings(max_examples=60)
@given(st.integers(1, 6), st.integers(1, 5), st.randoms(use_true_random=False))
def test_waits_and_the_shortest_stay_are_the_stays(ranks: int, steps: int, random: object) -> None:
    seed = random.randrange(1 << 30)  # type: ignore[attr-defined]
    numbers = np.random.default_rng(seed)
    stays = numbers.integers(1, 1000, (ranks, steps)).astype(float)
    stays[numbers.random(stays.shape) < 0.2] = np.nan
    for group in group_waits(run_of(stays, [SyncPoint("backward")]), ["backward"]):
        there = np.isfinite(stays)
        assert (group.wait_ns()[~there] == 0).all() and (group.wait_ns() >= 0).all()
        whole = group.wait_ns() + group.shortest_ns()
        assert np.array_equal(whole[there], stays[there])
        assert np.array_equal(group.last() == NOBODY, there.sum(0) < 2)
