"""The stages of whole training scripts, against what perf_counter says in the same run."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.profile_rows import Row, read
from tests.support.ranks import ROOT

pytestmark = [pytest.mark.long_file, pytest.mark.timeout(300)]

# Seconds. What lies between the two ways of timing takes longer where processes wait in line.
A_CALL = 50e-6 * max(1.0, 2 * os.getloadavg()[0] / (os.cpu_count() or 1))
SCRIPTS = Path(__file__).parent / "scripts"


def run(how: str, folder: Path, *scripts: str, **settings: str) -> None:
    """Runs scripts one after another in a process, see tests.support.run_truth."""
    subprocess.run(
        [sys.executable, "-m", "tests.support.run_truth", how, str(folder),
         *(str(SCRIPTS / name) for name in scripts)],
        check=True, cwd=ROOT, env={**os.environ, "OMP_NUM_THREADS": "1", **settings},
    )  # fmt: skip


def result(folder: Path, rank: int = 0) -> dict[str, Any]:
    told: dict[str, Any] = json.loads((folder / f"result_{rank}.json").read_text())
    return told


def rows_of(folder: Path, rank: int = 0) -> list[Row]:
    return read(folder / f"profile_rank_{rank}.csv")


def stages(rows: list[Row]) -> list[Row]:
    """The stages from step 1 on: step 0 has no forward, and the setting up of the files in it."""
    return [
        row
        for row in rows
        if row.kind == "END" and row.metadata.get("tag") == "run" and row.step != 0
    ]


def check_exclusive(rows: list[Row]) -> None:
    """No two stages of the training thread overlap."""
    spans = sorted((row.time_ns - (row.duration_ns or 0), row.time_ns) for row in rows)
    for (_, end), (begin, _) in itertools.pairwise(spans):
        assert begin >= end - 1000  # the rows' times are rounded


def check_sum(name: str, rows: list[Row], spans: list[tuple[float, bool]]) -> None:
    """The sum of a stage is within 2 % + 50 µs a call of the truth, on a machine that is idle.

    Left out are calls next to which the kernel put the thread aside, and the tenth that differs
    most: another guest of the machine may have had the processor.
    """
    assert len(rows) == len(spans), name
    pairs = [
        ((row.duration_ns or 0) / 1e9, seconds)
        for row, (seconds, undisturbed) in zip(rows, spans, strict=True)
        if undisturbed
    ]
    pairs.sort(key=lambda pair: abs(pair[0] - pair[1]))
    kept = pairs[: len(pairs) - len(pairs) // 10]
    if not kept:
        return  # all of its few calls were disturbed
    recorded, wanted = (sum(side) for side in zip(*kept, strict=True))
    # The call of a step has the recorder's own work and torch's hooks in it, the stage has not.
    a_call = 3 * A_CALL if name == "optimizer" else A_CALL
    assert abs(recorded - wanted) <= 0.02 * wanted + a_call * len(kept), name


def check(folder: Path, rank: int = 0, no_forward: int = 0, sums: bool = False) -> None:
    """Iterations are equal to the truth, and so are the stages: each call, and with sums its time.

    no_forward: so many iterations from the first on have none, as their process was no rank yet.
    """
    truth = result(folder, rank)
    rows = rows_of(folder, rank)
    recorded = stages(rows)
    check_exclusive(recorded)
    spans: dict[str, list[tuple[float, bool]]] = truth["spans"]
    assert {row.name for row in recorded} == set(spans)
    for name, calls in spans.items():
        mine = [row for row in recorded if row.name == name]
        if name in ("forward", "loss") and no_forward:
            assert {row.step for row in mine} == set(range(no_forward, truth["iterations"]))
            calls = calls[-len(mine) :]
        if name == "loss" and len(mine) > len(calls):
            # A drain was running where a loss was to be taken back: it was ended instead.
            assert len(mine) <= len(calls) + 2
            continue
        assert len(mine) == len(calls), name
        if sums:
            check_sum(name, mine, calls)
    ended = [row for row in rows if row.kind == "END" and row.step >= 0]
    iterations = set(range(truth["iterations"]))
    # What comes after the last iteration is that of a next one where a drain came before the end:
    # the wait for a batch that did not come, what was taken for a loss, or a call of a collective.
    assert {row.step for row in ended} <= {*iterations, truth["iterations"]}
    stages_ended = [row for row in ended if row.metadata.get("tag") != "collectives"]
    with_stages = {row.step for row in stages_ended if row.name != "loss"}
    assert with_stages - {truth["iterations"]} == iterations
    [end] = [row for row in rows if row.name == "my_utils.run_end"]
    assert end.metadata["iterations"] == str(truth["iterations"])


SCRIPTS_TO_CHECK = [
    "plain", "accumulation", "gan", "ppo", "sac", "dqn", "forward_forward", "amp",
    "in_backward", "by_hand", "takeover",
]  # fmt: skip


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The folders of the runs with the truth and of those without the recorder."""
    folders = {how: tmp_path_factory.mktemp(how) for how in ("truth", "bare")}
    for how, folder in folders.items():
        run(how, folder, *(f"{name}.py" for name in [*SCRIPTS_TO_CHECK, "lbfgs"]))
    return folders


@pytest.mark.slow
@pytest.mark.parametrize("script", SCRIPTS_TO_CHECK)
def test_iterations_and_stages_are_those_of_the_script(script: str, runs: dict[str, Path]) -> None:
    check(runs["truth"] / script, no_forward=8 if script == "by_hand" else 0)


@pytest.mark.thorough
@pytest.mark.parametrize("script", SCRIPTS_TO_CHECK)
def test_stages_take_what_a_clock_beside_them_says(script: str, runs: dict[str, Path]) -> None:
    """On a machine that has nothing else to do."""
    check(runs["truth"] / script, no_forward=8 if script == "by_hand" else 0, sums=True)


@pytest.mark.slow
@pytest.mark.parametrize("script", [*SCRIPTS_TO_CHECK, "lbfgs"])
def test_a_script_computes_the_same_hash_for_hash(script: str, runs: dict[str, Path]) -> None:
    with_us, without = (result(runs[how] / script)["hash"] for how in ("truth", "bare"))
    assert with_us == without


@pytest.mark.slow
def test_closures_of_lbfgs_are_stages_between_parts_of_the_step(runs: dict[str, Path]) -> None:
    """136 closures in 6 iterations, or as many as there are."""
    folder = runs["truth"] / "lbfgs"
    spans = result(folder)["spans"]
    rows = stages(rows_of(folder))
    check_exclusive(rows)
    for name in ("forward", "loss", "backward", "eval"):
        assert len([row for row in rows if row.name == name]) == len(spans[name]), name
    parts = [row for row in rows if row.name == "optimizer"]
    assert len(parts) == len(spans["backward"]) + len(spans["step"])
    assert {row.step for row in rows if row.step >= 0} == set(range(1, 6))


@pytest.mark.thorough
def test_closures_of_lbfgs_take_their_time_from_the_step(runs: dict[str, Path]) -> None:
    """On a machine that has nothing else to do."""
    folder = runs["truth"] / "lbfgs"
    spans = result(folder)["spans"]
    rows = stages(rows_of(folder))
    for name in ("forward", "loss", "backward", "eval"):
        check_sum(name, [row for row in rows if row.name == name], spans[name])
    whole = sum(seconds for seconds, _ in spans["step"])
    inner = sum(s for name in ("forward", "loss", "backward") for s, _ in spans[name])
    parts = [row.duration_ns or 0 for row in rows if row.name == "optimizer"]
    assert sum(parts) / 1e9 <= whole - inner + A_CALL * len(parts)
