"""`my_utils run --watch-replicas`: ranks of an unchanged script drift apart, and who says so."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from my_utils.cli import live, why

from ..conftest import RunPython
from ..support.schemas import loads_checked
from .test_launched_ranks import RUN, TORCHRUN, environment

pytest.importorskip("torch", reason="torch is not installed")

pytestmark = [pytest.mark.timeout(400)]

TRAINING = """
import os, sys, torch, torch.distributed as dist
torch.set_num_threads(1)
dist.init_process_group("gloo")
torch.manual_seed(0)
nn = torch.nn
net = nn.Sequential(nn.Linear(256, 64), nn.BatchNorm1d(64), nn.Linear(64, 1))
model = torch.nn.parallel.DistributedDataParallel(net)
optimizer = torch.optim.AdamW(model.parameters())
for step in range(int(sys.argv[1])):
    optimizer.zero_grad()
    model(torch.randn(8, 256)).square().mean().backward()
    optimizer.step()
    if (step, dist.get_rank()) == (53, 1):
        with torch.no_grad():
            net[0].weight[41, 7] += 1
dist.barrier()
dist.destroy_process_group()
"""

DRIFT = "replicas differ since step 51 to 60: 0.weight, rows 40-43, rank 0 against rank 1"


def run(folder: Path, *options: str, steps: int = 100) -> subprocess.CompletedProcess[str]:
    script = folder / "train.py"
    script.write_text(TRAINING, encoding="utf-8")
    command = [*RUN, "-o", "run", "--watch-replicas", "10", *options, "--", *TORCHRUN,
               "--nproc-per-node", "2", str(script), str(steps)]  # fmt: skip
    return subprocess.run(
        command, cwd=folder, env=environment(), capture_output=True, text=True, timeout=300,
        check=False,
    )  # fmt: skip


@pytest.mark.slow
def test_a_drift_is_told_by_all(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    done = run(tmp_path)
    assert done.returncode == 0, done.stderr
    assert DRIFT in done.stderr.splitlines()
    assert len(done.stderr.splitlines()) <= 12
    folder = str(tmp_path / "run")

    assert why.main([folder]) == why.EXIT_FOUND
    assert capsys.readouterr().out.splitlines()[0] == DRIFT
    assert why.main([folder, "--json"]) == why.EXIT_FOUND
    found = loads_checked("why", capsys.readouterr().out)["replicas"]
    assert (found["checks"], found["differences"][0]["tensors"][0]["place"]) == (10, "rows 40-43")
    assert found["notes"][0].startswith("3 tensors not checked: statistics of BatchNorm")

    assert live.main([folder, "--once"]) == live.EXIT_SUSPECTS
    assert DRIFT in capsys.readouterr().out.splitlines()
    assert live.main([folder, "--once", "--json"]) == live.EXIT_SUSPECTS
    assert loads_checked("live", capsys.readouterr().out)["replicas"] == found

    rows = (tmp_path / "run" / "profile_rank_0.csv").read_text().splitlines()
    checked = [row.split(",")[3] for row in rows if ",replicas,START," in row]
    assert checked == ["0", *map(str, range(10, 100, 10))]


@pytest.mark.thorough
def test_equal_replicas_are_said_to_be_equal(tmp_path: Path) -> None:
    done = run(tmp_path, steps=45)
    assert "replicas are equal: 5 checks up to step 40" in done.stderr.splitlines()
    assert why.main([str(tmp_path / "run"), "--quiet"]) != why.EXIT_NOT_JUDGED


@pytest.mark.parametrize("steps", ["0", "-1", "x", "1.5"])
def test_wrong_numbers_of_steps(steps: str, run_python: RunPython) -> None:
    done = run_python("-m", "my_utils", "run", "--watch-replicas", steps, "train.py")
    assert done.returncode == 2
    assert f"must be 1 step or more, not {steps}" in done.stderr


def test_a_variable_that_is_no_number(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from my_utils.core.warnings import forget
    from my_utils.run.environment import REPLICAS, replica_steps

    forget(f"environment:{REPLICAS}")
    monkeypatch.setenv(REPLICAS, "often")
    assert replica_steps() == 0
    assert "should be a number of steps, not 'often'" in caplog.text
    monkeypatch.setenv(REPLICAS, "25")
    assert replica_steps() == 25
