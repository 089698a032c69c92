"""The proof of the verdict in small; `python -m tests.analysis.verdict.proof` is the whole of it.

The gate takes a few seeds at small sizes and `make thorough` more of them. What must hold is what
the whole proof holds: plants that cost a fifth of the run or more are named, none is "not judged",
healthy runs are not accused.
"""

from __future__ import annotations

import dataclasses
import multiprocessing
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from my_utils.analysis.verdict.rules import judge
from my_utils.analysis.verdict.text import terminal_lines
from tests.analysis.verdict import proof
from tests.analysis.verdict.outcome_store import OutcomeStore
from tests.analysis.verdict.trials import (
    PROMISE_WITHIN,
    Outcome,
    Trial,
    attempt,
    host_plants,
    run_of,
)
from tests.analysis.verdict.truth import TRUTHS, accusations
from tests.support.run_simulator.device import DevicePlant, DeviceScenario, simulate_device

SIZES = (1, 2, 8)
THOROUGH_RUNS = 20


def cells(sizes: tuple[int, ...], runs: int, loss: float) -> list[Trial]:
    options = proof.parse(["--runs", str(runs), "--healthy", "0", "--losses", str(loss)])
    options.sizes = sizes
    return proof.trials(options)


def shown(outcomes: list[Outcome]) -> str:
    return "\n".join(f"{one.trial.plant}, {one.trial.ranks} ranks, {one.topology}, "
                     f"{one.trial.loss:.0%}: {one.said}" for one in outcomes)  # fmt: skip


@pytest.mark.parametrize("plant", sorted(TRUTHS))
def test_a_plant_that_costs_half_the_run_is_named(plant: str) -> None:
    device = plant not in host_plants()
    sizes = [ranks for ranks in SIZES if ranks in TRUTHS[plant].sizes]
    outcomes = [
        attempt(Trial(plant, ranks, 0.5, number, device=device))
        for ranks in sizes
        for number in range(5)
    ]
    wrong = [one for one in outcomes if not one.right]
    assert not wrong, shown(wrong)


@pytest.mark.parametrize(
    "trial",
    [
        Trial("uneven batches", 8, 0.2, 9),  # a pipeline: the largest batch is on another stage
        Trial("CPU hog", 1, 0.2, 4),  # its calm steps are the only measure
        Trial("CPU hog", 4, 0.2, 85),  # forward is most of a step, and so of its hiccups
        Trial("slow forward on one rank", 4, 0.2, 34),  # FSDP hides most of it; nothing moves
        Trial("CPU hog", 1000, 0.5, 31),  # most of it lies inside the meetings
        Trial("slow loader on one rank", 64, 0.2, 38, recorded=False),  # one rank of many
        Trial("falling throughput", 1, 0.2, 15),  # two levels leave little less than a line
        Trial("launches slower than the device", 1, 0.2, 21, device=True),  # 1.2 ms behind of 210
        Trial("slow loader on all ranks, GPU", 2, 0.2, 5, device=True),
    ],
    ids=lambda trial: str(trial.plant),
)
def test_a_plant_that_was_missed_once_is_named(trial: Trial) -> None:
    one = attempt(trial)
    assert one.right, shown([one])


def test_healthy_runs_are_ok() -> None:
    options = proof.parse(["--healthy", "40"])
    options.sizes = (1, 2, 4, 8, 64)
    outcomes = [attempt(trial) for trial in proof.healthy_trials(options)]
    assert {one.status for one in outcomes} == {"ok"}, shown(
        [one for one in outcomes if one.status != "ok"]
    )


@pytest.mark.thorough
@pytest.mark.timeout(3600)
def test_the_bounds_hold_at_all_sizes() -> None:
    """At losses of 20 and 50 %, each cell; not judged and falsely accused, all healthy runs."""
    todo = cells((1, 2, 4, 8, 64, 1000), THOROUGH_RUNS, 0.2) + cells((2, 8, 64), THOROUGH_RUNS, 0.5)
    options = proof.parse(["--healthy", "500"])
    outcomes = proof.run(todo + proof.healthy_trials(options), multiprocessing.cpu_count())
    healthy = [one for one in outcomes if one.trial.plant is None]
    planted = [one for one in outcomes if one.trial.plant is not None]
    assert not [one for one in planted if one.status == "not judged"]
    wrong = [one for one in planted if not one.right]
    few = (1 - proof.WANTED) * THOROUGH_RUNS
    failed = Counter((one.trial.plant, one.trial.ranks, one.trial.loss) for one in wrong)
    assert not {cell for cell, count in failed.items() if count > max(1, few)}, shown(wrong)
    assert sum(one.status == "not judged" for one in healthy) <= 0.05 * len(healthy)
    accused = [one for one in healthy if one.status == "found"]
    assert len(accused) <= 0.01 * len(healthy), shown(accused)


@pytest.mark.parametrize("plant", ["slow loader on one rank", "slow forward on one rank",
                                   "checkpoint stalls on rank 0", "GC pauses"])  # fmt: skip
def test_the_promised_step_is_that_of_the_run_without_the_plant(plant: str) -> None:
    outcomes = [
        attempt(Trial(plant, ranks, 0.2, number)) for ranks in (2, 8) for number in range(5)
    ]
    promises = [one.promise for one in outcomes if one.right and not one.inside]
    assert promises, shown(outcomes)
    assert np.max(promises) <= PROMISE_WITHIN


def test_a_hiccup_in_a_pipeline_is_promised_once() -> None:
    """It makes the next step of the others long, and not that in which it is seen."""
    one = attempt(Trial("CPU hog", 64, 0.5, 9))
    assert one.right
    assert one.promise <= PROMISE_WITHIN


def test_launching_is_named_once() -> None:
    trial = Trial("launches slower than the device", 8, 0.5, 0, device=True)
    verdict = judge(run_of(trial)[0].run)
    assert [one.kind for one in verdict.costly] == ["launch"]


def test_what_can_be_seen_in_part_promises_at_most() -> None:
    """Under FSDP most of forward is a meeting."""
    trial = Trial("slow forward on one rank", 8, 0.5, 2)
    simulated, topology = run_of(trial)
    verdict = judge(simulated.run)
    promised = np.mean(simulated.step_ns[verdict.warmup :]) - verdict.costly[0].saves_ns_a_step
    assert topology == "fsdp"
    assert promised >= np.mean(simulated.healthy_ns)
    assert "would be at most" in "\n".join(terminal_lines(verdict, 120))


def test_what_was_lost_does_not_add_up_to_more_than_a_run() -> None:
    """Nor is one wait blamed on two: what is promised leaves time for the run."""
    for plant in sorted(TRUTHS):
        trial = Trial(plant, 8, 0.5, 3, device=plant not in host_plants())
        simulated, _ = run_of(trial)
        verdict = judge(simulated.run)
        accused = accusations(verdict.findings, simulated.run.device)
        saved = sum(one.saves_ns_a_step for one in accused)
        assert saved <= np.mean(simulated.step_ns[verdict.warmup :]), plant


@pytest.mark.parametrize("late_ns", [0.0, 150e3])
@pytest.mark.parametrize("ranks", [1, 2, 8])
@pytest.mark.parametrize(
    ("plant", "kind"),
    [
        ("slow loader on all ranks, GPU", "input"),
        ("slow loader on one rank, GPU", "straggler"),  # its launches are not hidden either
        ("slow copies to the device", "h2d"),
    ],
)
def test_a_device_that_waits_for_more_than_launches(
    plant: DevicePlant, kind: str, ranks: int, late_ns: float
) -> None:
    """A small model, with events around all stages, and times that come late by their error."""
    for seed in range(10):
        found = simulate_device(
            DeviceScenario(
                ranks, 100, plant, 0.6, seed,
                device_part=0.05, events_everywhere=True, late_ns=late_ns,
            )
        )  # fmt: skip
        verdict = judge(found.run)
        first = verdict.findings[0]
        assert found.planted is not None
        found_kind = "input" if ranks == 1 and kind == "straggler" else kind
        assert (first.kind, first.ranks) == (found_kind, found.planted.ranks), verdict.lines()


@pytest.mark.parametrize("device_part", [1.0, 0.05])
@pytest.mark.parametrize("plant", [None, "slow loader on all ranks, GPU"])
def test_events_around_the_input_change_nothing(
    plant: DevicePlant | None, device_part: float
) -> None:
    for seed in range(10):
        with_events, without = (
            judge(
                simulate_device(
                    DeviceScenario(
                        2, 100, plant, 0.4 if plant else 0.0, seed,
                        synchronises=seed % 2 == 1, device_part=device_part,
                        events_everywhere=everywhere,
                    )
                ).run
            )
            for everywhere in (True, False)
        )  # fmt: skip
        assert with_events.lines() == without.lines(), seed


def test_without_gpu_times_a_device_is_not_judged() -> None:
    run = simulate_device(DeviceScenario(2, 100, seed=1, gpu_times=0.5)).run
    verdict = judge(run)
    assert verdict.status == "not judged"
    assert "of the steps have GPU times" in str(verdict.reason)


@pytest.mark.filterwarnings("error::RuntimeWarning")
def test_steps_without_gpu_times_do_not_count() -> None:
    """numpy warned of them: the first stage of nothing."""
    run = simulate_device(DeviceScenario(2, 100, seed=1, gpu_times=0.9)).run
    assert run.gpu is not None and not np.isfinite(run.gpu.begins).any(2).all()
    assert judge(run).status != "not judged"


@pytest.mark.slow
def test_a_proof_goes_on_where_it_was_interrupted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And begins anew once the rules are others. What is half written counts for nothing."""
    path = tmp_path / "outcomes.jsonl"
    todo = cells((1, 2), 2, 0.5)
    with_all = proof.run(todo, 1)
    proof.run(todo, 1, OutcomeStore(path), seconds=0)
    lines = path.read_text().splitlines()
    assert 1 < len(lines) < len(todo)
    path.write_text("\n".join([*lines, lines[-1][:40]]))
    store = OutcomeStore(path)
    assert len(store.known) == len(lines) - 1
    outcomes = proof.run(todo, 1, store)
    assert proof.tables(outcomes) == proof.tables(with_all)
    assert set(OutcomeStore(path).known) == set(todo)
    monkeypatch.setattr("tests.analysis.verdict.outcome_store.digest_of_rules", lambda: "others")
    assert not OutcomeStore(path).known


def test_a_part_of_a_proof_holds_every_cell() -> None:
    todo = proof.evenly(cells((1, 2), 8, 0.5))
    part = Counter(dataclasses.replace(trial, number=0) for trial in todo[: len(todo) // 4])
    assert set(part.values()) == {2}


def test_the_command_writes_the_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "proof.md"
    part = ["--runs", "2", "--healthy", "4", "--plants", "loader on one rank$", "--sizes", "2,4",
            "--losses", "0.5", "--jobs", "1", "--out", str(page)]  # fmt: skip
    assert proof.main(part) == 0
    assert capsys.readouterr().out.strip() in page.read_text()
    assert "| slow loader on one rank | 100% | 100% |" in page.read_text()
