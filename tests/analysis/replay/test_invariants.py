"""What holds for any run: names of ranks, the unit of time and copies change nothing."""

from __future__ import annotations

import functools

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from my_utils.analysis.replay.judge import judge_operations
from my_utils.analysis.replay.operations import RECEIVE, SEND, TOGETHER, Operations
from my_utils.analysis.replay.result import ReplayFinding, ReplayVerdict

from ...support.plants import case_of
from ...support.replayed import operations_of

pytestmark = pytest.mark.no_torch

PLANTED = [
    ("ddp", "slow rank"), ("fsdp", "outliers"), ("tp", "change"), ("pp", "slow stage"),
    ("3d", "slow host"), ("ep", "moving"), ("hsdp", "slow link"), ("interleaved", "slow rank"),
]  # fmt: skip


@functools.cache
def run_of(layout: str, plant: str) -> tuple[Operations, ReplayVerdict]:
    operations = operations_of(case_of(layout, plant, 0.3, 8, 40, seed=3).program)
    verdict = judge_operations(operations)
    assert verdict.status == "found", verdict.lines()
    return operations, verdict


def summary(verdict: ReplayVerdict) -> list[tuple[str, tuple[int, ...], float]]:
    found = []
    for one in verdict.findings[:1]:
        assert isinstance(one, ReplayFinding)
        found.append((one.claim, one.ranks, one.share))
    return found


@given(planted=st.sampled_from(PLANTED), seed=st.integers(0, 1000))
@settings(max_examples=12)
def test_ranks_renamed_give_the_same_verdict_renamed(planted: tuple[str, str], seed: int) -> None:
    operations, before = run_of(*planted)
    names = np.random.default_rng(seed).permutation(40)[:8]
    renamed = Operations(
        names[operations.rank], operations.lane, operations.step, operations.name,
        operations.begin_ns, operations.end_ns, operations.meeting, operations.side,
        operations.names,
        {int(names[rank]): stage for rank, stage in operations.stages.items()},
        {int(names[rank]): host for rank, host in operations.hosts.items()},
    )  # fmt: skip
    after = judge_operations(renamed)
    (claim, ranks, share), (claim2, ranks2, share2) = *summary(before), *summary(after)
    assert claim2 == claim
    assert ranks2 == tuple(sorted(int(names[rank]) for rank in ranks))
    assert share2 == pytest.approx(share, abs=1e-3)


@given(planted=st.sampled_from(PLANTED), factor=st.sampled_from([0.25, 2.0, 3.0, 5.0]))
@settings(max_examples=12)
def test_a_scaled_run_gives_the_scaled_verdict(planted: tuple[str, str], factor: float) -> None:
    operations, before = run_of(*planted)
    scaled = operations.kept(np.arange(len(operations)))
    scaled.begin_ns = np.rint(operations.begin_ns * factor).astype(np.int64)
    scaled.end_ns = np.rint(operations.end_ns * factor).astype(np.int64)
    after = judge_operations(scaled)
    (claim, ranks, share), (claim2, ranks2, share2) = *summary(before), *summary(after)
    assert (claim2, ranks2) == (claim, ranks)
    assert share2 == pytest.approx(share, abs=2e-3)
    assert after.step_ns == pytest.approx(factor * before.step_ns, rel=1e-6)


@pytest.mark.parametrize("planted", [("ddp", "slow rank"), ("fsdp", "outliers"), ("tp", "change")])
def test_a_rank_that_is_copied_changes_nothing(planted: tuple[str, str]) -> None:
    operations, before = run_of(*planted)
    claim, ranks, share = summary(before)[0]
    healthy = next(rank for rank in range(8) if rank not in ranks)
    rows = np.flatnonzero(operations.rank == healthy)
    both = operations.kept(np.r_[np.arange(len(operations)), rows])
    both.rank[len(operations) :] = 99
    both.hosts = {**operations.hosts, 99: "another"}
    claim2, ranks2, share2 = summary(judge_operations(both))[0]
    assert (claim2, ranks2) == (claim, ranks)
    assert share2 == pytest.approx(share, abs=0.01)


@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_that_also_writes_logs_is_compared_with_the_others(rank: int) -> None:
    operations = operations_of(case_of("ddp", "slow rank", 0.3, 2, 40, seed=3).program)
    wanted = summary(judge_operations(operations))
    inputs = (operations.rank == rank) & (operations.name == operations.names.index("input"))
    rows = np.flatnonzero(inputs)
    both = operations.kept(np.r_[np.arange(len(operations)), rows])
    both.names = (*operations.names, "log")
    both.name[len(operations) :] = len(operations.names)
    both.begin_ns[len(operations) :] = both.end_ns[len(operations) :]
    ((claim, ranks, share),) = summary(judge_operations(both))
    assert (claim, ranks) == wanted[0][:2]
    assert share == pytest.approx(wanted[0][2], abs=0.01)


def test_stages_of_other_ranks_say_nothing() -> None:
    operations, _ = run_of("ddp", "slow rank")
    others = operations.kept(np.arange(len(operations)))
    others.stages = {rank + 1: rank % 2 for rank in range(8)}
    unknown = operations.kept(np.arange(len(operations)))
    unknown.stages = {}
    assert judge_operations(others).lines() == judge_operations(unknown).lines()


def test_steps_that_take_no_time_are_not_judged() -> None:
    operations, _ = run_of("ddp", "slow rank")
    still = operations.kept(np.arange(len(operations)))
    still.begin_ns = still.end_ns = np.zeros(len(operations), np.int64)
    verdict = judge_operations(still)
    assert (verdict.status, verdict.reason) == ("not judged", "the steps take no time")


@st.composite
def any_operations(draw: st.DrawFn) -> Operations:
    """Rows with any times, some of which meet; most are not runs that could have happened."""
    count = draw(st.integers(1, 60))
    column = functools.partial(st.lists, min_size=count, max_size=count)
    rank = np.array(draw(column(st.integers(0, 3))))
    step = np.array(draw(column(st.integers(0, 4))))
    begin = np.array(draw(column(st.integers(0, 10**9))))
    length = np.array(draw(column(st.sampled_from([0, 1, 10**3, 10**6, 10**9]))))
    meeting = np.array(draw(column(st.integers(-1, 9))))
    side = np.array(draw(column(st.sampled_from([TOGETHER, TOGETHER, SEND, RECEIVE]))))
    return Operations(
        rank, np.array(draw(column(st.integers(0, 2)))), step,
        np.array(draw(column(st.integers(0, 3)))), begin, begin + length,
        np.where(meeting < 0, -1, meeting + 10 * step), side,
        ("forward", "checkpoint", "a-send", "a-recv"),
        {one: one % 2 for one in range(4)} if draw(st.booleans()) else {},
        {one: "ab"[one % 2] for one in range(4)},
    )  # fmt: skip


@given(any_operations())
@settings(max_examples=150)
def test_no_share_is_above_the_step_whatever_the_rows(operations: Operations) -> None:
    verdict = judge_operations(operations)
    assert verdict.lines()
    shares = [one.share for one in verdict.findings]
    assert all(0 < share <= 1 for share in shares)
    assert sum(shares) <= 1 + 1e-9
    assert 0 <= verdict.unknown_share <= 1
    if verdict.status == "not judged":
        assert verdict.reason
