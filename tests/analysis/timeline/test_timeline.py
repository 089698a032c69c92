"""When what held in a run: simulated events against what was planted, and what `why` shows."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from my_utils.analysis.timeline.levels import find_edges, fit_line
from my_utils.analysis.timeline.text import timeline_lines
from tests.support.run_simulator.simulate import Scenario, simulate

from ...conftest import RunPython
from ...support.planted_runs import Run
from ...support.variants import gate_runs
from ...support.verdict_figures import contradictions
from .events import EVENTS, is_right, simulated, timeline

pytestmark = pytest.mark.no_torch

SIZES = {1: 1500, 2: 600, 8: 1000, 64: 400}  # steps by ranks
STEADY = ("GC pauses", "checkpoint stalls on rank 0", "evaluation on all ranks", "uneven batches")


@pytest.mark.parametrize("event", EVENTS)
def test_an_event_is_named(event: str) -> None:
    for seed in range(2):
        run, planted = simulated(event, 8, 400, 0.26, seed)
        found = timeline(run)
        assert is_right(found, planted, run), (seed, found)


@pytest.mark.parametrize("plant", [None, *STEADY])
def test_a_run_that_is_the_same_all_the_time_has_no_parts(plant: str | None) -> None:
    for seed in range(3):
        run = simulate(Scenario(8, 400, "ddp", plant, 0.2 if plant else 0.0, seed)).run
        found = timeline(run)
        assert len(found.parts) < 2 and not any(one.drift for one in found.parts), (seed, found)


@pytest.mark.slow
@pytest.mark.parametrize("seeds", gate_runs(["2"], [2, 20]))
def test_of_many_events_nearly_all_are_named(seeds: int) -> None:
    right: Counter[str | None] = Counter()
    whole: Counter[str | None] = Counter()
    for seed in range(seeds):
        for ranks, steps in SIZES.items():
            for event in [None, *EVENTS]:
                if ranks == 1 and event == "one rank, then another":
                    continue
                run, planted = simulated(event, ranks, steps, (0.12, 0.26)[seed % 2], seed)
                whole[event] += 1
                right[event] += is_right(timeline(run), planted, run)
    print({event: f"{right[event]} of {count}" for event, count in whole.items()})
    assert right[None] == whole[None]
    assert right.total() >= 0.95 * whole.total()


def test_slow_noise_makes_no_level() -> None:
    """Neighbours go together, as where a host is warm for a minute."""
    random = np.random.default_rng(1)
    false = 0
    for _ in range(100):
        noise = random.standard_normal(400)
        for at in range(1, 400):
            noise[at] += 0.8 * noise[at - 1]
        false += bool(find_edges(100 + noise, 2.0)) or fit_line(100 + noise, 2.0) is not None
    assert false <= 2


# --- what why shows ---


def shown(run_python: RunPython, folder: Path, *options: str) -> list[str]:
    done = run_python("-m", "my_utils", "why", str(folder), *options)
    assert not done.stderr, done.stderr
    return done.stdout.splitlines()


def parts(lines: list[str]) -> list[str]:
    return [line for line in lines if line.startswith("steps ")]


def test_a_rank_that_is_slow_from_a_step_on(tmp_path: Path, run_python: RunPython) -> None:
    """Over all steps it costs 7 %, which is nothing to say."""
    run = Run(ranks=4, steps=400).slower(1.5, "forward", rank=1, steps=slice(200, 400))
    logs = run.write(tmp_path / "logs")
    lines = shown(run_python, logs)
    assert len(lines) <= 12
    assert lines[0].startswith("WAITING FOR rank 1 in iter/forward ")
    assert "200 steps, 4 ranks" in lines[0]
    first, second = parts(lines)
    assert first.startswith("steps 1 to 199 ") and first.endswith("nothing stands out")
    assert second.startswith("steps 200 to 399 ") and "waiting for rank 1 in iter" in second
    data = json.loads("".join(shown(run_python, logs, "--json")))
    assert not contradictions(data)
    before, after = data["timeline"]["parts"]
    assert (before["first_step"], before["last_step"], before["finding"]) == (1, 199, None)
    assert (after["first_step"], after["last_step"], after["slow"]) == (200, 399, [1])
    assert after["longer"] == pytest.approx(after["step_ms"] / before["step_ms"] - 1, abs=1e-3)
    assert (data["status"], data["first_step"]) == ("found", 200)


def test_ranks_that_are_slow_one_after_the_other(tmp_path: Path, run_python: RunPython) -> None:
    run = Run(ranks=4, steps=300).slower(2, "forward", rank=0, steps=slice(0, 150))
    logs = run.slower(2, "forward", rank=3, steps=slice(150, 300)).write(tmp_path / "logs")
    first, second = parts(shown(run_python, logs))
    assert first.startswith("steps 1 to 149 ") and "waiting for rank 0" in first
    assert second.startswith("steps 150 to 299 ") and "waiting for rank 3" in second


def test_a_restart_is_said(tmp_path: Path, run_python: RunPython) -> None:
    logs = Run(ranks=2, steps=100).write(tmp_path / "logs")
    later = Run(ranks=2, steps=100, first_step=100, attempt=2, start_ns=1_750_000_100 * 10**9)
    later.slower(1.5, "forward").write(logs)
    first, second = parts(shown(run_python, logs, "--timeline"))
    assert first.startswith("steps 1 to 99 ") and "restart" not in first
    assert second.startswith("steps 100 to 199 ") and second.endswith(", after a restart")


def test_pauses_at_one_distance(tmp_path: Path, run_python: RunPython) -> None:
    run = Run(ranks=2, steps=400)
    for step in range(39, 400, 40):
        run.slower(20, "forward", rank=0, steps=step)
    logs = run.write(tmp_path / "logs")
    line = next(one for one in shown(run_python, logs, "--timeline") if one.startswith("each "))
    assert line.startswith("each 40 steps ") and "rank 0 takes " in line and "forward" in line
    (one,) = json.loads("".join(shown(run_python, logs, "--json")))["timeline"]["periods"]
    assert (one["every"], one["ranks"], one["times"]) == (40, [0], 10)


def test_pauses_at_one_distance_in_whatever_stage_they_come(
    tmp_path: Path, run_python: RunPython
) -> None:
    """As a process that another one stops: one of them does not show, and the rank has other long
    steps between them."""
    run, random = Run(ranks=2, steps=800), np.random.default_rng(3)
    factors = {"data": 160, "forward": 40, "backward": 27}
    for step in (one for one in range(39, 800, 40) if one != 399):
        stage = str(random.choice([*factors]))
        run.slower(factors[stage], stage, rank=1, steps=step)
    for step in random.choice(800, 12, replace=False):
        run.slower(5, "forward", rank=1, steps=int(step))
    logs = run.write(tmp_path / "logs")
    line = next(one for one in shown(run_python, logs, "--timeline") if one.startswith("each "))
    assert line.startswith("each 40 steps ") and "rank 1 takes " in line
    assert "in one stage or another" in line
    (one,) = json.loads("".join(shown(run_python, logs, "--json")))["timeline"]["periods"]
    assert (one["every"], one["ranks"], one["stage"]) == (40, [1], None)


def test_more_parts_than_fit_are_counted() -> None:
    run, _ = simulated("all ranks each week", 8, 1000, 0.26, 1)
    found = timeline(run)
    assert len(found.parts) == 4
    shown = timeline_lines(found, 3)
    assert len(shown) == 3 and shown[-1] == "and 2 more: my_utils why --timeline"
    assert len(timeline_lines(found, None)) == 4
