"""The rules on arrays whose truth is planted: who is named, where, since when, what is promised."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from my_utils.analysis.verdict.promises import _join
from my_utils.analysis.why import Finding, RunData, SyncPoint, Verdict, judge

from ...support.array_runs import DDP, ArrayRun
from ...support.verdict_figures import contradictions

pytestmark = [pytest.mark.no_torch, pytest.mark.filterwarnings("error::RuntimeWarning")]

LOST_MS = 24.0  # of a step of about 95 ms: 20 % of what it then takes
SEEDS = range(4)

Plant = Callable[[ArrayRun], Any]


def planted(plant: Plant, ranks: int, seed: int, **options: Any) -> tuple[Verdict, float, RunData]:
    """The verdict, and a step without the plant."""
    healthy = ArrayRun(ranks=ranks, seed=seed, **options).data()
    run = ArrayRun(ranks=ranks, seed=seed, **options)
    plant(run)
    data = run.data()
    return judge(data), float(healthy.step_ns[:, 1:].mean()), data


def worst(verdict: Verdict) -> Finding:
    assert verdict.status == "found", verdict.lines()
    return verdict.findings[0]


def never_more_than_the_step(verdict: Verdict, run: RunData) -> None:
    """What was lost never adds up to more than what was waited, nor savings to the step."""
    costly = verdict.costly
    assert sum(one.saves_ns_a_step for one in costly) <= verdict.step_ns
    waits = run.totals[..., list(run.stages).index("backward")]
    waited = float((waits - waits.min(0)).mean(1).max())
    lost = sum(one.detail.get("lost_ns", 0.0) for one in costly)
    assert lost <= waited * 1.02
    named = [rank for one in costly for rank in one.ranks if len(one.ranks) < len(run.ranks)]
    assert len(named) == len(set(named))


STEADY = [
    ("input", "input"),
    ("forward", "straggler"),
    ("optimizer", "optimizer"),
    ("untimed", "untimed"),
]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("ranks", [2, 4, 8, 64])
@pytest.mark.parametrize("stage, kind", STEADY)
def test_a_rank_that_is_slow_in_a_stage(stage: str, kind: str, ranks: int, seed: int) -> None:
    rank = (seed * 7 + 1) % ranks
    verdict, healthy_ns, run = planted(
        lambda it: it.more(stage, LOST_MS, rank=rank), ranks, seed
    )  # fmt: skip
    one = worst(verdict)
    assert (one.kind, one.ranks, one.stage, one.since_step) == (kind, (rank,), stage, None)
    assert verdict.step_ns - one.saves_ns_a_step == pytest.approx(healthy_ns, rel=0.1)
    assert not one.inferred and len(verdict.costly) == 1
    never_more_than_the_step(verdict, run)


@pytest.mark.parametrize("stage, kind", [("input", "input"), ("optimizer", "optimizer")])
@pytest.mark.parametrize("ranks", [1, 2, 64])
def test_all_ranks_are_slow_in_a_stage(stage: str, kind: str, ranks: int) -> None:
    verdict, healthy_ns, _ = planted(lambda it: it.more(stage, LOST_MS), ranks, 1)
    one = worst(verdict)
    assert (one.kind, one.ranks, one.stage) == (kind, tuple(range(ranks)), stage)
    assert verdict.step_ns - one.saves_ns_a_step == pytest.approx(healthy_ns, rel=0.1)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("every", [2, 3, 10, 25])
@pytest.mark.parametrize("ranks", [1, 2, 8])
def test_a_rank_that_sleeps_now_and_then(ranks: int, every: int, seed: int) -> None:
    verdict, healthy_ns, _ = planted(
        lambda it: it.more(
            "forward", LOST_MS * every, rank=ranks - 1, steps=slice(every, None, every)
        ),
        ranks,
        seed,
    )
    one = worst(verdict)
    assert (one.kind, one.ranks, one.stage) == ("straggler", (ranks - 1,), "forward")
    assert verdict.step_ns - one.saves_ns_a_step == pytest.approx(healthy_ns, rel=0.1)
    assert one.detail.get("every", every) == every


def test_nobody_waits_for_a_rank_that_is_alone() -> None:
    def plant(run: ArrayRun) -> None:
        run.more("forward", 9 * LOST_MS, rank=0, steps=slice(5, None, 9))

    for ranks, head in ((1, "LONG STEPS on rank 0 in forward"), (2, "WAITING FOR rank 0 in")):
        verdict, _, _ = planted(plant, ranks, 0)
        assert verdict.lines()[0].startswith(head), verdict.lines()
        assert any("longer in forward on rank 0" in line for line in verdict.lines())


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("ranks", [1, 2, 8, 64])
def test_pauses_in_any_stage_are_host_hiccups(ranks: int, seed: int) -> None:
    def plant(run: ArrayRun) -> None:
        for step in range(5, run.steps, 9):
            stage = run.stages[run.random.integers(len(run.stages))]
            run.more(stage, 9 * LOST_MS, rank=ranks - 1, steps=step)

    verdict, healthy_ns, _ = planted(plant, ranks, seed)
    one = worst(verdict)
    assert (one.kind, one.ranks, one.stage) == ("host hiccups", (ranks - 1,), None)
    assert verdict.step_ns - one.saves_ns_a_step == pytest.approx(healthy_ns, rel=0.1)


@pytest.mark.parametrize("seed", SEEDS)
def test_pauses_that_nobody_sees_are_not_those_of_a_rank_with_a_few(seed: int) -> None:
    """Each fifth backward is long on all ranks, as if one of them paused before the reduction."""

    def plant(run: ArrayRun) -> None:
        run.more("backward", 9 * LOST_MS, steps=slice(4, None, 5))
        run.more("forward", 3 * LOST_MS, rank=0, steps=slice(7, None, 13))

    verdict, _, _ = planted(plant, 2, seed)
    accused = [one.ranks for one in verdict.costly if len(one.ranks) == 1]
    assert not accused, verdict.lines()


@pytest.mark.parametrize("seed", SEEDS)
def test_few_pauses_of_the_other_rank_share_no_blame(seed: int) -> None:
    """They cost more than nothing, but a fraction of those of the first one."""

    def plant(run: ArrayRun) -> None:
        run.more("untimed", 9 * LOST_MS, rank=0, steps=slice(4, None, 4))
        run.more("forward", 18 * LOST_MS, rank=1, steps=[2, 15])

    verdict, _, _ = planted(plant, 2, seed)
    assert worst(verdict).ranks == (0,), verdict.lines()


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("ranks, slow", [(4, 2), (8, 4), (64, 8), (64, 32)])
def test_a_slow_host_is_named_once(ranks: int, slow: int, seed: int) -> None:
    hosts = [f"node{rank // slow}" for rank in range(ranks)]

    def plant(run: ArrayRun) -> None:
        run.took_ns[slow : 2 * slow] *= 1.3

    verdict, healthy_ns, _ = planted(plant, ranks, seed, hosts=hosts)
    one = worst(verdict)
    assert (one.kind, one.hosts, len(one.ranks)) == ("straggler", ("node1",), slow)
    assert one.inferred  # half of it lies inside backward, which nobody sees
    assert len(verdict.costly) == 1
    assert verdict.step_ns - one.saves_ns_a_step == pytest.approx(healthy_ns, rel=0.1)
    assert f"host node1, {slow} ranks" in verdict.lines()[0]


def test_ranks_of_one_stage_are_named_together() -> None:
    verdict, _, _ = planted(
        lambda it: it.more("input", LOST_MS, rank=[2, 5]), 8, 0, hosts=["a"] * 4 + ["b"] * 4
    )
    one = worst(verdict)
    assert (one.kind, one.ranks, one.hosts) == ("input", (2, 5), ())
    assert len(verdict.costly) == 1


def test_two_causes_are_named_apart_and_share_the_saving() -> None:
    def plant(run: ArrayRun) -> None:
        run.more("input", 40, rank=1)
        run.more("forward", 20, rank=6)

    verdict, healthy_ns, run = planted(plant, 8, 3)
    found = {(one.kind, one.ranks): one.saves_ns_a_step for one in verdict.costly}
    assert set(found) == {("input", (1,)), ("straggler", (6,))}
    assert verdict.step_ns - sum(found.values()) == pytest.approx(healthy_ns, rel=0.05)
    never_more_than_the_step(verdict, run)


@pytest.mark.parametrize("ranks", [2, 8])
def test_since_when_a_rank_is_slow(ranks: int) -> None:
    verdict, _, _ = planted(
        lambda it: it.more("forward", 3 * LOST_MS, rank=1, steps=slice(80, None)), ranks, 0
    )
    one = worst(verdict)
    assert (one.kind, one.ranks, one.since_step) == ("straggler", (1,), 80)
    assert "since step 80" in " ".join(verdict.lines())


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("ranks", [1, 2, 64])
def test_all_ranks_are_slower_from_a_step_on(ranks: int, seed: int) -> None:
    verdict, healthy_ns, _ = planted(
        lambda it: it.more("forward", 2 * LOST_MS, steps=slice(60, None)), ranks, seed
    )
    one = worst(verdict)
    assert (one.kind, one.stage, one.since_step) == ("slower since", "forward", 60)
    assert verdict.step_ns - one.saves_ns_a_step == pytest.approx(healthy_ns, rel=0.1)


@pytest.mark.parametrize("ranks", [1, 4])
@pytest.mark.parametrize("stages", [("input", "forward"), ("input", "forward", "optimizer")])
def test_what_becomes_longer_may_move_among_stages(stages: tuple[str, ...], ranks: int) -> None:
    """In the median none of them becomes longer."""
    run = ArrayRun(ranks=ranks, noise=0.0)
    for at, stage in enumerate(stages):
        run.more(stage, 2 * LOST_MS, steps=slice(60 + at, None, len(stages)))
    verdict = judge(run.data())
    one = worst(verdict)
    assert (one.kind, one.stage, one.since_step) == ("slower since", None, 60)
    assert verdict.step_ns - one.saves_ns_a_step == pytest.approx(94e6, rel=0.01)


@pytest.mark.parametrize("stage", ["untimed", "optimizer", "forward"])
@pytest.mark.parametrize("ms", [100, 300, 3000])
def test_a_long_first_step_is_no_loss_of_the_steps_after_it(stage: str, ms: int) -> None:
    for ranks in (1, 4):
        run = ArrayRun(ranks=ranks, steps=60).more(stage, ms, steps=0)
        verdict = judge(run.data(sync_points=[DDP] if ranks > 1 else []))
        assert verdict.status == "ok", verdict.lines()


def test_a_rise_in_the_second_half_saves_what_the_first_half_took() -> None:
    """A line through all steps begins below every step that ever was."""
    run = ArrayRun(ranks=4, steps=600, noise=0.01)
    rises = np.clip(np.arange(600) - 300, 0, None) * 0.2e6
    run.took_ns[:, :, run.at("forward")] += rises
    verdict = judge(run.data(sync_points=[DDP]))
    finding = verdict.findings[0]
    assert finding.kind in ("throughput falls", "slower since")
    without = verdict.step_ns - finding.saves_ns_a_step
    assert without == pytest.approx(verdict.step_ns - rises.mean(), rel=0.02)


@pytest.mark.parametrize("ranks", [1, 8, 64])
@pytest.mark.parametrize("noise", [0.02, 0.05])
def test_a_rise_that_begins_late_costs_what_it_costs(ranks: int, noise: float) -> None:
    """Two levels describe it better than a line, and cost a quarter too little."""
    means = {"input": 2.0, "forward": 60.0, "backward": 20.0, "optimizer": 4.0}
    run = ArrayRun(ranks=ranks, steps=2000, noise=noise, means_ms=means)
    rises = np.clip(np.arange(2000) - 1000, 0, None) * 0.048e6
    run.took_ns[:, :, run.at("forward")] += rises
    verdict = judge(run.data(sync_points=[DDP] if ranks > 1 else []))
    finding = verdict.findings[0]
    assert (finding.kind, finding.stage) == ("throughput falls", "forward"), verdict.lines()
    assert finding.cost_ns_a_step == pytest.approx(rises.mean(), rel=0.06)


@pytest.mark.parametrize("ranks", [1, 8, 64])
@pytest.mark.parametrize("height_ms", [40, 100])
def test_a_rise_from_the_first_step_on_costs_what_it_costs(ranks: int, height_ms: int) -> None:
    """The first eighth of the steps has risen, too: by its median an eighth was missing."""
    means = {"input": 2.0, "forward": 60.0, "backward": 20.0, "optimizer": 4.0}
    run = ArrayRun(ranks=ranks, steps=1000, noise=0.02, means_ms=means)
    rises = np.arange(1000) * height_ms * 1e3
    run.took_ns[:, :, run.at("forward")] += rises
    findings = judge(run.data(sync_points=[DDP] if ranks > 1 else [])).findings
    (finding,) = (one for one in findings if one.kind == "throughput falls")
    assert finding.stage == "forward"
    assert finding.cost_ns_a_step == pytest.approx(rises.mean(), rel=0.04)


def test_batches_that_are_larger_by_turns_explain_an_imbalance() -> None:
    """The largest batch of a step is always as large."""
    run = ArrayRun(ranks=2, steps=120)
    samples = np.where((np.arange(120) + np.arange(2)[:, None]) % 2, 3.0, 1.0)
    run.took_ns[:, :, run.at("forward")] += 12e6 * (samples - 1)
    verdict = judge(run.data(sync_points=[DDP], counters={"samples": samples}))
    finding = verdict.findings[0]
    assert finding.kind == "moving imbalance", verdict.lines()
    assert finding.detail["by"] == "samples"
    assert verdict.samples_a_step == samples[:, verdict.warmup :].sum(0).mean()
    assert verdict.tokens_a_step is None
    assert finding.cost_ns_a_step == pytest.approx(12e6, rel=0.1)


def test_what_all_ranks_do_at_times_is_no_hiccup_of_one() -> None:
    """An evaluation of 300 ms each 10 steps; rank 1 alone pauses in four other steps."""

    def plant(run: ArrayRun) -> None:
        run.more("eval", 300.0, steps=slice(9, None, 10))
        run.more("untimed", 100.0, rank=1, steps=[13, 34, 55, 76])

    means_ms = {"input": 1.0, "forward": 6.0, "backward": 10.0, "optimizer": 2.0, "eval": 0.0}
    verdict, _, _ = planted(plant, 2, 0, means_ms=means_ms)
    one = worst(verdict)
    assert (one.kind, one.ranks) == ("eval", (0, 1))
    assert [other.kind for other in verdict.costly] == ["eval"]


@pytest.mark.parametrize("seed", SEEDS)
def test_a_stage_that_is_long_in_all_steps_and_longer_in_some(seed: int) -> None:
    """Both are one finding, and a step without it has neither."""

    def plant(run: ArrayRun) -> None:
        run.more("untimed", 40.0)
        run.more("untimed", 200.0, steps=slice(7, None, 10))

    verdict, healthy_ns, run = planted(plant, 1, seed)
    one = worst(verdict)
    assert (one.kind, one.stage) == ("untimed", "untimed")
    assert one.cost_ns_a_step == one.saves_ns_a_step == pytest.approx(60e6, rel=0.15)
    assert verdict.step_ns - one.saves_ns_a_step == pytest.approx(healthy_ns, rel=0.1)
    never_more_than_the_step(verdict, run)


def test_how_often_all_ranks_write_a_checkpoint() -> None:
    means = {"input": 2.0, "forward": 25.0, "backward": 60.0, "optimizer": 6.0, "checkpoint": 0.0}
    run = ArrayRun(ranks=2, steps=201, means_ms=means)
    run.more("checkpoint", 122, steps=slice(10, 200, 10))
    verdict = judge(run.data(sync_points=[DDP]))
    assert verdict.findings[0].kind == "checkpoint"
    assert "  19 times, every 10 steps: 122.0 ms each" in verdict.lines()


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("ranks", [1, 2, 64])
def test_throughput_that_falls(ranks: int, seed: int) -> None:
    def plant(run: ArrayRun) -> None:
        run.took_ns *= (1 + 0.6 * np.arange(run.steps) / run.steps)[None, :, None]

    verdict, healthy_ns, _ = planted(plant, ranks, seed)
    one = worst(verdict)
    assert (one.kind, one.ranks, one.since_step) == ("throughput falls", (), None)
    assert verdict.step_ns - one.saves_ns_a_step == pytest.approx(healthy_ns, rel=0.1)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("ranks", [2, 4, 64])
def test_imbalance_that_moves(ranks: int, seed: int) -> None:
    def plant(run: ArrayRun) -> None:
        factors = run.random.lognormal(0, 0.3, (ranks, run.steps))
        run.took_ns[:, :, :-1] *= factors[:, :, None]

    verdict, _, _ = planted(plant, ranks, seed)
    one = worst(verdict)
    assert (one.kind, one.ranks) == ("moving imbalance", ())


def test_imbalance_that_follows_the_tokens() -> None:
    run = ArrayRun(ranks=4, seed=5)
    tokens = run.random.integers(1000, 3000, (4, run.steps)).astype(float)
    run.took_ns[:, :, :-1] *= (tokens / tokens.mean())[:, :, None]
    even = float((run.took_ns.sum(2).mean(0)).mean())
    one = worst(judge(run.data(counters={"tokens": tokens})))
    assert (one.kind, one.detail["by"]) == ("moving imbalance", "tokens")
    assert run.data().step_ns[:, 1:].mean() - one.saves_ns_a_step == pytest.approx(even, rel=0.1)


@pytest.mark.parametrize("ranks", [2, 8])
def test_slow_inside_a_meeting_is_not_judged_inside(ranks: int) -> None:
    verdict, _, _ = planted(lambda it: it.more("backward", LOST_MS, rank=1), ranks, 0)
    assert verdict.status == "ok"
    assert [(one.kind, one.stage) for one in verdict.findings] == [
        ("not judged inside", "backward")
    ]
    assert "backward (7" in verdict.lines()[1] and "not judged inside" in verdict.lines()[1]


def test_a_rank_that_waits_least_and_nobody_knows_why() -> None:
    """It is slow inside one meeting, and the others wait for it in the next one."""
    run = ArrayRun(ranks=8, meets=("forward", "backward"), seed=2).data()
    forward, backward = run.stages.index("forward"), run.stages.index("backward")
    run.totals[3, :, forward] += 30e6
    run.totals[3, :, backward] -= 30e6
    one = worst(judge(run))
    assert (one.kind, one.ranks, one.stage) == ("straggler", (3,), None)
    assert "rank 3, stage not known" in judge(run).lines()[0]


def test_of_two_ranks_it_is_who_came_last_to_what_both_leave_together() -> None:
    """Where no moment says which stage that is, none is named."""
    run = ArrayRun(ranks=2, meets=("forward", "backward"), seed=2).data()
    forward, backward = run.stages.index("forward"), run.stages.index("backward")
    run.ends[1, :, forward] += 30e6
    run.begins[1, :, backward] += 30e6
    run.totals[:] = run.ends - run.begins
    one = worst(judge(run))
    assert (one.kind, one.ranks, one.stage) == ("straggler", (1,), None)
    clocks = np.random.default_rng(0).uniform(0, 1e9, run.step_begins.shape)
    run.step_begins += clocks
    for moments in (run.begins, run.ends):
        moments += clocks[:, :, None]
    assert judge(run).status == "ok"


# --- where ranks meet ---


@pytest.mark.parametrize("clock_ns, hosts", [(0.0, ["a"] * 4), (5e6, ["a", "a", "b", "b"])])
@pytest.mark.parametrize("stage, kind", STEADY)
def test_meetings_are_inferred_where_none_are_recorded(
    stage: str, kind: str, clock_ns: float, hosts: list[str]
) -> None:
    run = ArrayRun(ranks=4, seed=3, clock_ns=clock_ns, hosts=hosts).more(stage, LOST_MS, rank=2)
    verdict = judge(run.data(sync_points=None))
    one = worst(verdict)
    assert (one.kind, one.ranks, one.stage, one.inferred) == (kind, (2,), stage, True)
    assert verdict.inferred == ("backward",)
    assert "(inferred)" in " ".join(verdict.lines())


def test_aligned_clocks_of_several_hosts() -> None:
    run = ArrayRun(ranks=4, hosts=["a", "a", "b", "b"], noise=0.0).more("input", LOST_MS, rank=2)
    verdict = judge(run.data(sync_points=None, clock_error_ns=50_000.0))
    assert (worst(verdict).ranks, verdict.inferred) == ((2,), ("backward",))


def test_lengths_that_mirror_an_excess_are_enough_for_three_ranks() -> None:
    """No moment of the stages says anything: only lengths do."""
    run = ArrayRun(ranks=4, hosts=["a", "b", "c", "d"], noise=0.0, seed=1)
    data = run.more("input", LOST_MS, rank=2).data(sync_points=None)
    data.begins[:] += run.random.integers(0, 10**9, (4, run.steps, 1)) * 1.0
    data.ends[:] += run.random.integers(0, 10**9, (4, run.steps, 1)) * 1.0
    verdict = judge(data)
    assert (worst(verdict).ranks, verdict.inferred) == ((2,), ("backward",))


@pytest.mark.parametrize("ranks, slow", [(2, [1]), (4, [2, 3]), (8, [0, 2, 5, 6])])
def test_halves_that_mirror_each_other_are_not_judged(ranks: int, slow: list[int]) -> None:
    """Clocks are not aligned, one half is slow: either half may wait for the other."""
    hosts = ["b" if rank in slow else "a" for rank in range(ranks)]
    run = ArrayRun(ranks=ranks, hosts=hosts, noise=0.0)
    for rank in slow:
        run.more("input", LOST_MS, rank=rank)
    said = judge(run.data(sync_points=None))
    assert (said.status, said.inferred, said.findings) == ("not judged", (), [])
    assert said.reason is not None and "do not show which of them wait" in said.reason
    for data in (run.data(), run.data(sync_points=None, clock_error_ns=50_000.0)):
        assert worst(judge(data)).ranks == tuple(slow)


@pytest.mark.parametrize("ranks", [2, 4])
def test_ranks_that_differ_without_waiting_are_judged(ranks: int) -> None:
    """A stage that is longer on half of the ranks, and nothing else shorter: nobody waits."""
    run = ArrayRun(
        ranks=ranks,
        hosts=["a", "b"] * (ranks // 2),
        noise=0.0,
        groups=[[rank] for rank in range(ranks)],
    )
    run.took_ns[::2, :, run.at("forward")] += LOST_MS * 1e6
    assert judge(run.data(sync_points=None)).status != "not judged"


@pytest.mark.parametrize("seed", SEEDS)
def test_a_rank_that_wants_a_processor_comes_late_and_may_leave_late(seed: int) -> None:
    """Programs take its processor in some steps: it waits for one in the meeting, too."""
    run = ArrayRun(ranks=2, seed=seed, noise=0.0)
    late = np.flatnonzero(run.random.random(run.steps) < 0.25)
    run.took_ns[1, late, run.at("forward")] += 60e6
    data = run.data(sync_points=None)
    leaves_ns = np.where(np.arange(len(late)) % 4 == 0, 75e6, 3e6)
    for moments in (data.ends, data.totals):
        moments[1, late, run.at("backward")] += leaves_ns
    verdict = judge(data)
    assert (verdict.inferred, worst(verdict).ranks) == (("backward",), (1,))


def test_groups_that_never_meet_are_not_compared() -> None:
    groups = [range(4), range(4, 8)]
    run = ArrayRun(ranks=8, groups=groups)
    run.took_ns[4:, :, run.at("forward")] += 30e6  # the second model is larger
    assert judge(run.data()).status == "ok"
    run = ArrayRun(ranks=8, groups=groups).more("input", LOST_MS, rank=5)
    one = worst(judge(run.data()))
    assert (one.kind, one.ranks) == ("input", (5,))


def test_pipeline_stages_are_compared_among_themselves() -> None:
    run = ArrayRun(ranks=8)
    run.took_ns[4:, :, run.at("forward")] += 30e6
    peers = np.repeat([0, 1], 4)
    assert judge(run.data(peers=peers)).status == "ok"
    run.more("input", 60, rank=6)
    one = worst(judge(run.data(peers=peers)))
    assert (one.kind, one.ranks) == ("input", (6,))


def test_a_nested_stage_that_is_around_the_step_is_none() -> None:
    """As users of MyTimer write it: all stages in "iter"."""
    data = ArrayRun(ranks=2, seed=1).more("input", LOST_MS, rank=1).data(sync_points=None)
    names = ["iter", *(f"iter/{stage}" for stage in data.stages)]
    begins = np.concatenate([data.begins[..., :1], data.begins], axis=2)
    ends = np.concatenate([data.ends[..., -1:], data.ends], axis=2)
    own = (ends[..., 0] - begins[..., 0] - data.totals.sum(2))[..., None]
    data.stages, data.begins, data.ends = names, begins, ends
    data.totals = np.concatenate([own, data.totals], axis=2)
    verdict = judge(data)
    assert (worst(verdict).kind, worst(verdict).stage) == ("input", "iter/input")
    assert verdict.inferred == ("iter/backward",)


def test_communication_that_was_timed() -> None:
    means = {"forward": 30.0, "backward": 40.0, "collective": 25.0, "optimizer": 5.0}
    run = ArrayRun(ranks=4, means_ms=means, meets=("collective",))
    one = worst(judge(run.data()))
    assert (one.kind, one.stage) == ("communication", "collective")
    assert one.cost_ns_a_step == pytest.approx(25e6, rel=0.1)


# --- memory ---


@pytest.mark.parametrize("every", [1, 5, 40])
def test_memory_that_is_measured_in_some_steps_only(every: int) -> None:
    grows = np.full((1, 1200), np.nan)
    grows[:, ::every] = 1e8 + 2**18 * np.arange(1200)[::every]
    verdict = judge(ArrayRun(ranks=1, steps=1200).data(counters={"rss_bytes": grows}))
    one = next(one for one in verdict.findings if one.kind == "memory grows")
    assert one.detail["bytes_a_step"] == pytest.approx(2**18, rel=0.01)
    assert one.detail["growth"] == pytest.approx(2**18 * 1200 / 1e8, rel=0.25)


def test_memory_that_grows_and_memory_that_fills_up() -> None:
    steps = np.arange(120)
    noise = np.random.default_rng(0).standard_normal((2, 120)) * 1e6
    grows = np.stack([1e9 + 2e6 * steps, np.full(120, 1e9)]) + noise
    verdict = judge(ArrayRun(ranks=2).data(counters={"rss_bytes": grows}))
    one = worst(verdict)
    assert (one.kind, one.ranks) == ("memory grows", (0,))
    assert one.detail["bytes_a_step"] == pytest.approx(2e6, rel=0.1)
    fills = 1e9 + 4e8 * (1 - np.exp(-steps / 15)) + noise
    verdict = judge(ArrayRun(ranks=2).data(counters={"rss_bytes": fills}))
    assert verdict.status == "ok" and "memory steady" in verdict.lines()[-2]
    slowly = np.stack([1e9 + 0.3 * 2**20 * steps] * 2) + noise / 20
    verdict = judge(ArrayRun(ranks=2).data(counters={"rss_bytes": slowly}))
    assert verdict.status == "ok"
    assert re.search(r"\+(30\d|31\d)\.\d\d KiB a step since step 1: susp", verdict.lines()[-2])


# --- healthy runs, and runs that are not judged ---


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("ranks", [1, 2, 4, 8, 64])
@pytest.mark.parametrize("noise", [0.01, 0.03, 0.08])
def test_nobody_is_accused_of_noise(noise: float, ranks: int, seed: int) -> None:
    run = ArrayRun(ranks=ranks, noise=noise, seed=seed, steps=60 + 20 * (seed % 3))
    slow = run.random.random(run.took_ns.shape) < 0.002 * (seed % 3)
    run.took_ns[slow] *= 1.5
    run.took_ns *= 1 + 0.01 * run.random.standard_normal((ranks, 1, len(run.stages) + 1))
    for points in ([SyncPoint("backward", (), "ddp")] if ranks > 1 else [], None):
        verdict = judge(run.data(sync_points=points))
        assert verdict.status == "ok", verdict.lines()
        assert verdict.lines()[0].startswith("NOTHING STANDS OUT")


def test_what_costs_less_than_a_tenth_is_no_finding() -> None:
    assert judge(ArrayRun(ranks=4).more("input", 6, rank=1).data()).status == "ok"


@pytest.mark.parametrize(
    "changes, reason",
    [
        ({"world_size": 5}, "no files of rank 4 of 5"),
        ({"world_size": 9}, "no files of ranks 4-8 of 9"),
        ({"device": "cuda"}, "fewer than 80 % of the steps have GPU times"),
    ],
)
def test_what_an_ok_needs(changes: dict[str, Any], reason: str) -> None:
    verdict = judge(ArrayRun(ranks=4).more("input", LOST_MS, rank=1).data(**changes))
    assert (verdict.status, verdict.costly) == ("not judged", [])
    assert [(one.kind, one.ranks) for one in verdict.findings] == [("slower rank", (1,))]
    assert (verdict.reason or "").startswith(reason)
    assert verdict.lines()[0].startswith(f"NOT JUDGED: {reason}") and verdict.remedy


def test_too_few_steps() -> None:
    verdict = judge(ArrayRun(steps=20).data())
    assert verdict.reason == "19 steps after the warm-up, 20 are needed"
    assert judge(ArrayRun(steps=21).data()).status == "ok"
    assert judge(ArrayRun(steps=20).data(), warmup=0).status == "ok"
    verdict = judge(ArrayRun(steps=1).data())
    assert verdict.reason == "all rows have step 0"


def test_a_warm_up_that_is_longer_than_half_of_the_run() -> None:
    run = ArrayRun(steps=60).more("forward", 100, steps=slice(0, 31))
    assert judge(run.data()).reason == "the warm-up is longer than half of the 60 steps"
    verdict = judge(ArrayRun(steps=60).more("forward", 100, steps=slice(0, 12)).data())
    assert (verdict.status, verdict.warmup, verdict.judged_steps) == ("ok", 12, 48)
    assert verdict.findings[-1].kind == "warm-up"


def test_steps_that_vary_are_no_warm_up() -> None:
    """The first 13 of 30 steps took a third more by chance, with one short one among them."""
    varied = ArrayRun(steps=30).more("forward", 30, steps=slice(0, 13))
    assert judge(varied.data()).warmup == 1
    compiled = ArrayRun(steps=30).more("forward", 100, steps=slice(0, 13))
    assert judge(compiled.data()).warmup == 13


def test_a_rank_that_ended_early_is_said() -> None:
    data = ArrayRun(ranks=4, steps=100).data()
    data.step_ns[2, 60:] = np.nan
    verdict = judge(data)
    assert (verdict.status, verdict.stopped, verdict.judged_steps) == ("ok", (2,), 59)
    assert "rank 2 ended early" in verdict.lines()[-2]
    data.step_ns[2, 15:] = np.nan
    assert "rank 2 ended early" in (judge(data).reason or "")


def test_the_step_that_a_running_process_is_in_does_not_count() -> None:
    data = ArrayRun(ranks=2, steps=50).data()
    assert judge(data).last_step == 49
    data.running = True
    assert judge(data).last_step == 48


@pytest.mark.parametrize("warmup, error", [(-1, ValueError), (1.5, TypeError), ("1", TypeError)])
def test_a_wrong_warmup(warmup: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        judge(ArrayRun().data(), warmup)


def test_judging_changes_nothing() -> None:
    data = ArrayRun(ranks=4).more("input", LOST_MS, rank=1).data()
    before = {name: np.array(getattr(data, name)) for name in ("begins", "ends", "totals")}
    first, second = judge(data), judge(data)
    assert first == second
    for name, values in before.items():
        assert np.array_equal(getattr(data, name), values, equal_nan=True)


# --- stages that ranks do not have ---


def without_times(run: RunData, stage: str, ranks: slice, steps: slice = slice(None)) -> RunData:
    at = list(run.stages).index(stage)
    for moments in (run.begins, run.ends):
        moments[ranks, steps, at] = np.nan
    run.totals[ranks, steps, at] = 0
    return run


@pytest.mark.parametrize("stage", ["input", "backward", "optimizer"])
@pytest.mark.parametrize("steps", [slice(None), slice(1, None), slice(0, 100)])
def test_a_meeting_that_no_rank_has_in_the_judged_steps(stage: str, steps: slice) -> None:
    """As where a part of a run is judged. numpy warned of the mean of an empty slice."""
    run = ArrayRun(meets=("input", "backward", "optimizer")).more("forward", LOST_MS, rank=3)
    verdict = judge(without_times(run.data(), stage, slice(None), steps))
    named = [one.ranks for one in verdict.costly if one.stage == "forward"]
    assert named == ([(3,)] if stage != "backward" else []), verdict.lines()


@pytest.mark.parametrize("here", [slice(0, 4), slice(16, 20)])
def test_a_meeting_that_the_first_ranks_do_not_have(here: slice) -> None:
    """It does not change to which step the work after the last meeting belongs: one event is not
    two."""
    means_ms = {"input": 2.0, "share": 0.01, "forward": 25.0, "backward": 60.0, "optimizer": 6.0}
    run = ArrayRun(ranks=20, means_ms=means_ms)
    run.more("optimizer", 200, rank=5, steps=slice(3, None, 20))
    run.more("forward", 200, rank=5, steps=slice(4, None, 20))
    data = run.data(sync_points=[DDP, SyncPoint("share", tuple(range(20)[here]))])
    for others in (slice(0, here.start), slice(here.stop, None)):
        without_times(data, "share", others)
    one = worst(judge(data))
    assert (one.ranks, one.detail["hiccups"]) == ((5,), 6)
    assert one.detail["hiccup_ns"] == pytest.approx(400e6, rel=0.01)


@pytest.mark.parametrize("stage", ["untimed", "input", "optimizer"])
def test_pauses_beside_what_a_stage_always_takes(stage: str) -> None:
    """Both are what it spends, and what would be saved."""
    run = ArrayRun(ranks=1, means_ms={"input": 20.0, "forward": 25.0, "optimizer": 20.0})
    run.took_ns[:, :, run.at("untimed")] += 20e6
    run.more(stage, 700, steps=slice(7, None, 10))
    data = run.data()
    verdict = judge(data)
    one = worst(verdict)
    if stage == "untimed":
        took = data.step_ns[0, 1:] - data.totals[0, 1:].sum(1)
    else:
        took = data.totals[0, 1:, data.stages.index(stage)]
    assert one.detail["took_ns"] == pytest.approx(took.mean(), rel=0.01)
    assert one.saves_ns_a_step == pytest.approx(took.mean(), rel=0.01)
    assert contradictions(dict(verdict.as_data())) == []


def test_a_thousand_ranks() -> None:
    hosts = [f"node{rank // 8}" for rank in range(1000)]
    run = ArrayRun(ranks=1000, steps=60, hosts=hosts)
    run.took_ns[408:416] *= 1.3
    verdict = judge(run.data())
    one = worst(verdict)
    assert (one.hosts, one.ranks) == (("node51",), tuple(range(408, 416)))
    assert "WAITING FOR host node51, 8 ranks" in verdict.lines()[0]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("ranks", [2, 8])
def test_a_stage_that_all_ranks_have_and_one_has_more_of(ranks: int, seed: int) -> None:
    """These are two findings: without the first, the others still have the second."""

    def plant(run: ArrayRun) -> None:
        run.more("untimed", 2 * LOST_MS)
        run.more("untimed", LOST_MS, rank=1)

    verdict, _, _ = planted(plant, ranks, seed)
    found = {one.ranks: one.cost_ns_a_step * 1e-6 for one in verdict.costly}
    assert found.keys() == {(1,), tuple(range(ranks))}
    assert found[1,] == pytest.approx(LOST_MS, rel=0.1)
    for one in verdict.costly:
        assert ("others_ns" in one.detail) == (len(one.ranks) == 1)


def test_costs_that_add_up_are_no_longer_so_many_times_each() -> None:
    found: dict[tuple[object, ...], Finding] = {}
    detail = {"times": 15, "each_ns": 16e6, "every": 4, "slow_step": 3}
    for one in (
        Finding("input", (0,), stage="input", cost_ns_a_step=3e6, detail=detail),
        Finding("input", (0,), stage="input", cost_ns_a_step=1e6),
    ):
        _join(found, one, True, adds=True)
    (one,) = found.values()
    assert one.cost_ns_a_step == 4e6
    assert one.detail == {"times": 15, "every": 4, "slow_step": 3}
