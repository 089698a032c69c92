"""Ledgers of real trainings against their own clocks: each row within 5 % or 10 ms."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ...conftest import ROOT
from ...support import profile_rows

pytest.importorskip("torch")
pytestmark = pytest.mark.slow

SCRIPT = Path(__file__).with_name("training.py")
LAUNCH = [sys.executable, "-m", "torch.distributed.run", "--monitor-interval", "0.2"]


def trained(folder: Path, *plants: str, ranks: int = 1) -> dict[str, Any]:
    """The ledger of `my_utils run`."""
    command = [sys.executable, "-m", "my_utils", "run", "--quiet", "-o", str(folder / "logs"), "--"]
    if ranks > 1 or {"death", "restart"} & {*plants}:
        command += [*LAUNCH, "--standalone", "--max-restarts=1", f"--nproc-per-node={ranks}"]
    else:
        command += [sys.executable]
    env = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command += [str(SCRIPT), str(folder), *plants]
    subprocess.run(command, cwd=folder, env=env, check=False, timeout=300)
    return judged(folder, ranks)


def judged(folder: Path, ranks: int) -> dict[str, Any]:
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    why = [sys.executable, "-m", "my_utils", "why", str(folder / "logs"), "--json", "--hung", "4"]
    found = subprocess.run(why, capture_output=True, text=True, check=False, env=env)
    ledger: dict[str, Any] = json.loads(found.stdout)["ledger"]
    sums = [sum(row["ns"][at] for row in ledger["rows"]) for at in range(ranks)]
    assert sums == ledger["wall_ns"]
    return ledger


def of(ledger: dict[str, Any], row: str, rank: int = 0) -> float:
    return next((one["ns"][rank] for one in ledger["rows"] if one["row"] == row), 0) * 1e-6


def near(ledger: dict[str, Any], folder: Path, *rows: str, attempts: int = 1) -> None:
    """What a busy machine took of a stage is in other rows, and some steps have no counters."""
    taken_ms = sum(of(ledger, row) for row in ("no core", "quota", "warm-up", "pause"))
    for row in rows:
        truth_ms = 0.0
        for attempt in range(attempts):
            truth = json.loads((folder / f"truth-0-{attempt}.json").read_text())
            truth_ms += truth.get(row, 0) * 1e-6
        found_ms = of(ledger, row)
        error_ms = max(0.05 * truth_ms, 10)
        assert found_ms <= truth_ms + error_ms, (row, truth_ms, ledger)
        assert found_ms + taken_ms >= truth_ms - error_ms, (row, truth_ms, ledger)


@pytest.mark.parametrize(
    "plants",
    [
        ("launch", "closing"),
        ("evaluation", "checkpoint", "pause"),
        ("input", "gc"),
    ],
    ids=" ".join,
)
def test_of_one_rank(tmp_path: Path, plants: tuple[str, ...]) -> None:
    ledger = trained(tmp_path, *plants)
    near(ledger, tmp_path, *plants)


def test_of_an_evaluation_with_work_between_its_batches(tmp_path: Path) -> None:
    """Which is no pause."""
    ledger = trained(tmp_path, "validation")
    near(ledger, tmp_path, "evaluation")
    truth_ms = json.loads((tmp_path / "truth-0-0.json").read_text())["evaluation"] * 1e-6
    assert of(ledger, "evaluation") + of(ledger, "no core") >= 0.95 * truth_ms


def test_of_two_ranks_that_wait(tmp_path: Path) -> None:
    ledger = trained(tmp_path, "waiting", ranks=2)
    first = ledger["culprits"][0]
    assert (first["rank"], first["row"]) == (1, "other code")
    assert of(ledger, "waiting", 0) > 10 * 0.9 * 130
    launch = {one["part"]: one["ns"] for one in ledger["launch"]}
    truths = [json.loads((tmp_path / f"truth-{rank}-0.json").read_text()) for rank in range(2)]
    for part in ("imports", "process group"):
        truth_ns = sum(truth[part] for truth in truths)
        assert launch[part] == pytest.approx(truth_ns, rel=0.1, abs=20e6), part
    (row,) = (one for one in ledger["rows"] if one["row"] == "launch")
    assert sum(launch.values()) == sum(row["ns"])
    near(ledger, tmp_path, "launch")


def test_of_a_restart_from_a_checkpoint(tmp_path: Path) -> None:
    ledger = trained(tmp_path, "checkpoint", "death")
    assert [one["in_vain"] for one in ledger["attempts"]] == [[100, 104], None]
    near(ledger, tmp_path, "checkpoint", "launch", "restore", attempts=2)
    assert of(ledger, "restart") > 0 and of(ledger, "in vain") > 0


def test_of_a_hang_that_is_killed(tmp_path: Path) -> None:
    """Its heart beats each 2.5 s at least: what comes after the last beat is not known."""
    ledger = trained(tmp_path, "hang")
    truth_ms = json.loads((tmp_path / "truth-0-0.json").read_text())["hang"] * 1e-6
    assert truth_ms - 2600 <= of(ledger, "hang") <= truth_ms + 100
    assert of(ledger, "hang") + of(ledger, "exit") >= truth_ms - 100


def test_of_a_hang_that_a_restart_ends(tmp_path: Path) -> None:
    ledger = trained(tmp_path, "hang", "checkpoint", "restart")
    truth_ms = json.loads((tmp_path / "truth-0-0.json").read_text())["hang"] * 1e-6
    assert truth_ms - 2600 <= of(ledger, "hang") <= truth_ms + 100
    assert len(ledger["attempts"]) == 2
    near(ledger, tmp_path, "checkpoint", "launch", "restore", attempts=2)


COMPILES = """
import json, time, torch
torch.set_num_threads(1)
model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))
fast = torch.compile(model, backend="aot_eager", dynamic=False)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
took = []
for step in range(120):
    batch = torch.ones(4 if step < 60 else 8, 64)
    begin = time.monotonic_ns()
    loss = fast(batch).sum()
    took.append(time.monotonic_ns() - begin)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
json.dump(took, open("took.json", "w"))
"""


def test_compiling_in_the_middle_is_no_computing(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(COMPILES)
    command = [sys.executable, "-m", "my_utils", "run", "--quiet", "-o", "logs", "--"]
    env = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    subprocess.run(
        [*command, sys.executable, "train.py"], cwd=tmp_path, env=env, check=True, timeout=300
    )
    compiled = {
        row.step: int(row.metadata["us"]) * 1e-3
        for row in reversed(profile_rows.read(tmp_path / "logs" / "profile_rank_0.csv"))
        if row.name == "compile" and "us" in row.metadata and row.step > 0
    }  # of the step, the first one
    took_ms = json.loads((tmp_path / "took.json").read_text())[60] * 1e-6
    assert list(compiled) == [60] and compiled[60] <= took_ms
    ledger = judged(tmp_path, 1)
    taken_ms = sum(of(ledger, row) for row in ("no core", "gc"))
    assert of(ledger, "compile") + taken_ms >= 0.8 * took_ms
    assert of(ledger, "compute") < took_ms
