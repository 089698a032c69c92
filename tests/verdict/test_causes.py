"""What hiccups were: planted in the times and in what the host is said to have taken."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import pytest

from my_utils.verdict.run_data import HOST_COUNTERS
from my_utils.why import Finding, Verdict, judge

from ..support.array_runs import ArrayRun

pytestmark = pytest.mark.no_torch

HICCUP_MS = 200.0
STEPS = range(5, 120, 9)
TEXTS = {
    "gc0": "garbage collection, generation 0",
    "gc1": "garbage collection, generation 1",
    "gc2": "garbage collection, generation 2",
    "delay": "waiting for a core",
    "quota": "waiting for the quota of its cgroup",
    "own": "own work",
    "wait": "waiting for a disk, a lock, or stopped",
}


def judged(shares: Mapping[str, float], ranks: int, seed: int, **left_out: bool) -> Verdict:
    """Of a run whose last rank has hiccups that are made of these shares."""
    run = ArrayRun(ranks=ranks, seed=seed)
    for step in STEPS:
        stage = run.stages[run.random.integers(len(run.stages))]
        run.more(stage, HICCUP_MS, rank=ranks - 1, steps=step)
    shape = (ranks, run.steps)
    host = {name: np.abs(run.random.normal(300, 30, shape)) for name in HOST_COUNTERS}
    host["cpu_us"] += 60_000
    host["major_faults"][:] = 0
    for name, share in shares.items():
        more_us = 1000 * HICCUP_MS * share
        if name.startswith("gc"):
            host[f"{name}_us"][-1, list(STEPS)] += more_us
        if name == "quota":
            host["quota_us"][-1, list(STEPS)] += more_us
        if name != "wait":
            on = "delay_us" if name in ("delay", "quota") else "cpu_us"
            host[on][-1, list(STEPS)] += more_us
    return judge(run.data(counters={k: v for k, v in host.items() if k not in left_out}))


def hiccups_of(verdict: Verdict) -> Finding:
    assert verdict.findings[0].kind == "host hiccups", verdict.lines()
    return verdict.findings[0]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("ranks", [1, 2, 8])
@pytest.mark.parametrize("cause", TEXTS)
def test_a_cause_with_most_of_the_time_is_named(cause: str, ranks: int, seed: int) -> None:
    other = "delay" if cause != "delay" else "own"
    share = float(np.random.default_rng(seed).uniform(0.6, 0.9))
    verdict = judged({cause: share, other: 1 - share}, ranks, seed)
    one = hiccups_of(verdict)
    assert one.detail["cause"] == cause
    assert one.detail["causes"][0] == (cause, pytest.approx(share, abs=0.08))
    line = next(line for line in verdict.lines(200) if "of that" in line)
    assert TEXTS[cause] in line and "unknown" not in line
    assert any("docs/runs/hiccups.md" in line for line in verdict.lines(200))


def test_causes_of_equal_parts_are_unknown() -> None:
    verdict = judged({"gc2": 0.35, "delay": 0.33, "own": 0.32}, 4, 0)
    one = hiccups_of(verdict)
    assert one.detail["cause"] == "unknown"
    assert [name for name, _ in one.detail["causes"]] == ["gc2", "delay", "own"]
    assert any("cause unknown: of that" in line for line in verdict.lines(200))


@pytest.mark.parametrize("missing", ["cpu_us", "delay_us"])
def test_what_was_not_measured_is_no_cause(missing: str) -> None:
    verdict = judged({"own": 0.9}, 4, 0, **{missing: True})
    assert "causes" not in hiccups_of(verdict).detail
    assert not any("of that" in line for line in verdict.lines(200))


@pytest.mark.parametrize("share", [0.1, 0.5, 1.0])
def test_rows_that_are_missing(share: float) -> None:
    run = ArrayRun(ranks=2, seed=3)
    for step in STEPS:
        run.more(run.stages[step % 4], HICCUP_MS, rank=1, steps=step)
    host: dict[str, npt.NDArray[np.float64]] = {
        name: np.zeros((2, run.steps)) for name in HOST_COUNTERS
    }
    host["delay_us"][1, list(STEPS)] = 1000 * HICCUP_MS
    lost = list(STEPS)[: round(share * len(STEPS))]
    for values in host.values():
        values[1, lost] = np.nan
    detail = hiccups_of(judge(run.data(counters=host))).detail
    assert detail.get("cause") == ("delay" if share < 0.2 else None)


def test_pages_from_a_disk_are_counted() -> None:
    run = ArrayRun(ranks=2, seed=3)
    for step in STEPS:
        run.more(run.stages[step % 4], HICCUP_MS, rank=1, steps=step)
    host = {name: np.zeros((2, run.steps)) for name in HOST_COUNTERS}
    host["major_faults"][1, list(STEPS)] = 240
    verdict = judge(run.data(counters=host))
    assert hiccups_of(verdict).detail["disk_pages"] == 240
    assert any("it reads 240 pages from a disk" in line for line in verdict.lines(200))
