"""What a comparison says of planted differences: the side, the stage, the ranks, the sums."""

from __future__ import annotations

import re

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from my_utils.analysis.diff.comparison import STEPS_LEAST, compare
from my_utils.analysis.diff.load import RunSteps

from .series import SHARES, SPIKES, STAGES, STEP_NS, run, series

pytestmark = pytest.mark.no_torch


def of_ranks(seed: int, ranks: int, steps: int = 200) -> RunSteps:
    random = np.random.default_rng(seed)
    parts = np.stack([series(random, steps, 0.01, 0.2) for _ in range(ranks)])
    return RunSteps(list(STAGES), parts, list(range(ranks)))


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 999), st.integers(1, 3), st.integers(1, 3), st.floats(-0.05, 0.1))
def test_stages_add_up_to_the_step(seed: int, a: int, b: int, longer: float) -> None:
    random = np.random.default_rng(seed)
    sides = [[run(random, steps=90) for _ in range(a)],
             [run(random, steps=90, longer=longer) for _ in range(b)]]  # fmt: skip
    found = compare(sides[0], sides[1], warmup=3)
    assert found.step is not None and found.steps == 87
    shares = sum(one.interval.share for one in found.stages)
    assert shares == pytest.approx(found.step.share, abs=1e-12)
    for name in ("a_ns", "b_ns"):
        whole = sum(getattr(one, name) for one in found.stages)
        assert whole == pytest.approx(getattr(found, name), rel=1e-12)
    assert found.within == (min(a, b) == 1)


@pytest.mark.parametrize("stage", STAGES)
def test_a_planted_stage_is_named(stage: str) -> None:
    random = np.random.default_rng(STAGES.index(stage))
    found = compare([run(random)], [run(random, longer=0.03, stage=stage)])
    assert found.status == "slower" and found.stages[0].stage == stage
    assert [one.stage for one in found.different] == [stage]
    assert found.step is not None and found.step.low < 0.03 < found.step.high
    back = compare([run(random, longer=0.03, stage=stage)], [run(random)])
    assert back.status == "faster" and back.stages[0].stage == stage


def test_a_difference_that_moves_between_stages_is_seen_though_the_step_is_the_same() -> None:
    random = np.random.default_rng(0)
    b = run(random, 0.01, 0.0)
    b.parts[..., 0] += 0.03 * STEP_NS
    b.parts[..., 1] -= 0.03 * STEP_NS
    found = compare([run(random, 0.01, 0.0)], [b])
    assert found.status == "no difference"
    assert {one.stage for one in found.different} == {"input", "forward"}
    assert "in `input`" in found.lines()[0] and "in `forward`" in found.lines()[0]


def test_ranks_are_named() -> None:
    a, b = of_ranks(1, 8), of_ranks(2, 8)
    b.parts[..., 1] += 0.04 * STEP_NS
    b.parts[6:, :, 0] += 0.08 * STEP_NS
    found = compare([a], [b])
    ranks = {one.stage: one.ranks for one in found.different}
    assert ranks == {"forward": (), "input": (6, 7)}
    said = re.search(
        r"\+(.*) of it in `forward` on all ranks, \+(.*) in `input` on ranks 6-7, (.*) elsewhere",
        found.lines()[0],
    )
    assert said is not None and found.step is not None
    forward, loading, rest = (float(one.replace("−", "-")) for one in said.groups())
    assert abs(forward - 4) < 0.25 and abs(loading - 2) < 0.25
    assert round(forward + loading + rest, 1) == round(100 * found.step.share, 1)


def test_spikes_are_no_difference() -> None:
    """A mean would show 10 % more."""
    random = np.random.default_rng(3)
    a, b = run(random, 0.01, 0.0), run(random, 0.01, 0.0)
    b.parts[0, ::20] *= 3
    assert b.step_ns.mean() / a.step_ns.mean() > 1.08
    found = compare([a], [b])
    assert found.step is not None and abs(found.step.share) < 0.01


def test_runs_that_differ_from_each_other_are_no_difference_of_the_sides() -> None:
    """Within these runs B is slower; three runs a side show that runs differ by as much."""
    factors = [(1.0, 1.03, 0.98), (1.03, 0.99, 1.01)]
    random = np.random.default_rng(4)
    sides = [[run(random, 0.01, 0.0, factor=factor) for factor in side] for side in factors]
    one = compare([sides[0][0]], [sides[1][0]])
    assert one.status == "slower" and one.within
    assert "within these runs only" in one.lines()[0]
    assert any("--repeat" in line for line in one.lines())
    several = compare(sides[0], sides[1])
    assert several.status == "no difference" and "3 × 3 runs" in several.lines()[0]


def test_the_warm_up_and_the_length_are_those_of_all_runs() -> None:
    random = np.random.default_rng(5)
    a, b = run(random, steps=300), run(random, steps=120)
    a.warmup, b.warmup = 4, 9
    found = compare([a], [b])
    assert (found.warmup, found.steps) == (9, 111)


def test_too_few_steps_are_not_compared() -> None:
    random = np.random.default_rng(6)
    a, b = run(random, steps=300), run(random, steps=STEPS_LEAST + 4)
    b.path, b.warmup = "logs/b", 5
    found = compare([a], [b])
    assert found.status == "not compared"
    assert found.lines()[0] == "NOT COMPARED: 19 steps after the warm-up, 20 are needed"
    assert "logs/b has 24 whole steps" in found.lines()[1]


def test_a_stage_that_only_some_runs_show_counts_into_the_one_around_it() -> None:
    random = np.random.default_rng(7)

    def with_inner(share: float) -> RunSteps:
        one = run(random, 0.01, 0.0)
        if share:
            inner = one.parts[..., 1:2] * share
            one.parts[..., 1:2] -= inner
            one.parts = np.concatenate([one.parts[..., :-1], inner, one.parts[..., -1:]], axis=2)
            one.stages = [*STAGES[:-1], "forward/attn", "untimed"]
        return one

    found = compare([with_inner(0.5), with_inner(0)], [with_inner(0.5), with_inner(0)])
    assert {one.stage for one in found.stages} == set(STAGES) and not found.different
    new = compare(
        [with_inner(0) for _ in range(4)],
        [with_inner(0.5) for _ in range(4)],
    )
    assert {one.stage: round(one.interval.share, 2) for one in new.different} == {
        "forward": -0.15, "forward/attn": 0.15,
    }  # fmt: skip


def test_a_side_without_a_run_is_refused() -> None:
    with pytest.raises(ValueError, match="a and b must have a run"):
        compare([], [of_ranks(0, 1)])


def test_memory_and_throughput() -> None:
    random = np.random.default_rng(8)
    sides = [[run(random, 0.01, 0.0) for _ in range(3)] for _ in "AB"]
    for at, side in enumerate(sides):
        for one in side:
            one.memory["rss_bytes"] = np.linspace(1, 1 + 0.5 * at, 500) * 2**30
            one.items["samples"] = np.full(500, 32.0)
    figures = {one.name: one for one in compare(sides[0], sides[1]).figures}
    assert figures["memory"].share == pytest.approx(0.5)
    interval = figures["memory"].interval
    assert interval is not None and interval.low == pytest.approx(0.5)
    rate = 32 / (STEP_NS * 1e-9 * SHARES.sum() * (1 + 0.8 * SPIKES))
    assert figures["samples/s"].a == pytest.approx(rate, rel=0.01)
