"""Ledgers of real trainings against their own clocks: each row within 5 % or 10 ms."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ...conftest import ROOT
from ...support import profile_rows
from ...support.variants import gate_runs

pytest.importorskip("torch")
pytestmark = pytest.mark.slow

SCRIPT = Path(__file__).with_name("training.py")
LOOPS = Path(__file__).with_name("loops.py")
LAUNCH = [sys.executable, "-m", "torch.distributed.run", "--monitor-interval", "0.2"]


def trained(
    folder: Path, *plants: str, ranks: int = 1, script: Path = SCRIPT, restarts: int = 1
) -> dict[str, Any]:
    """The ledger of `my_utils run`."""
    command = [sys.executable]
    if ranks > 1 or {"death", "restart"} & {*plants}:
        command = [*LAUNCH, "--standalone", f"--max-restarts={restarts}"]
        command += [f"--nproc-per-node={ranks}"]
    run(folder, *command, str(script), str(folder), *plants)
    return judged(folder, ranks)


def run(folder: Path, *command: str) -> None:
    """Under `my_utils run`; `ended` has when the command itself ended, Unix time in ns."""
    under = [sys.executable, "-m", "my_utils", "run", "--quiet", "-o", str(folder / "logs"), "--"]
    timed = ["sh", "-c", '"$@"; date +%s%N > ended', "sh"]
    env = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    subprocess.run([*under, *timed, *command], cwd=folder, env=env, check=False, timeout=300)


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


def truth_of(folder: Path, rank: int = 0, attempt: int = 0) -> dict[str, Any]:
    truth: dict[str, Any] = json.loads((folder / f"truth-{rank}-{attempt}.json").read_text())
    return truth


def waits_ms(folder: Path, ranks: int) -> list[float]:
    """By rank, by the clocks of all: its stays in the meetings, less the shortest in each."""
    meetings = [*zip(*(truth_of(folder, rank)["stays"] for rank in range(ranks)), strict=True)]
    return [sum(each[rank] - min(each) for each in meetings) * 1e-6 for rank in range(ranks)]


def near(
    ledger: dict[str, Any], folder: Path, *rows: str, attempts: int = 1, rank: int = 0
) -> None:
    """What a busy machine took of a stage is in other rows, and some steps have no counters."""
    taken_ms = sum(of(ledger, row, rank) for row in ("no core", "quota", "warm-up", "pause"))
    for row in rows:
        truths = (truth_of(folder, rank, attempt) for attempt in range(attempts))
        truth_ms = sum(truth.get(row, 0) for truth in truths) * 1e-6
        found_ms = of(ledger, row, rank)
        error_ms = max(0.05 * truth_ms, 10)
        print(f"{row} of rank {rank}: {found_ms:.1f} ms, by its own clock {truth_ms:.1f} ms")
        assert found_ms <= truth_ms + error_ms, (row, truth_ms, ledger)
        taken_from = 0 if row in ("no core", "in vain", "exit") else taken_ms
        assert found_ms + taken_from >= truth_ms - error_ms, (row, truth_ms, ledger)


@pytest.mark.parametrize(
    "plants",
    gate_runs(
        ["evaluation checkpoint pause"],
        [("launch", "closing"), ("evaluation", "checkpoint", "pause"), ("input", "gc")],
        " ".join,
    ),
)
def test_of_one_rank(tmp_path: Path, plants: tuple[str, ...]) -> None:
    ledger = trained(tmp_path, *plants)
    near(ledger, tmp_path, *plants)


@pytest.mark.thorough
@pytest.mark.parametrize(
    "ranks, plants, rows",
    [
        (2, ("checkpoint@0",), ("checkpoint",)),
        (2, ("checkpoint", "files@1"), ("checkpoint", "pause")),
        (2, ("evaluation@0",), ("evaluation",)),
        (4, ("evaluation",), ("evaluation",)),
        (4, ("later@2",), ()),
        (3, ("late@1", "later@2"), ()),
        (2, ("late@1", "later@1", "pause@0"), ("pause",)),
        (2, ("imports@1", "result@0"), ("closing",)),
        (2, ("group@0", "long launch@1"), ()),
        (1, ("busy",), ("no core",)),
        (1, ("graphs",), ("gc",)),
        (1, ("slow input",), ("input",)),
        (1, ("slow input", "workers 1"), ("input",)),
        (1, ("slow input", "workers 2"), ("input",)),
    ],
    ids=str,
)
def test_of_plants_in_some_ranks(
    tmp_path: Path, ranks: int, plants: tuple[str, ...], rows: tuple[str, ...]
) -> None:
    """Each rank is judged by its own clock; whom it waits for, by those of all."""
    ledger = trained(tmp_path, *plants, ranks=ranks)
    for rank, waited_ms in enumerate(waits_ms(tmp_path, ranks)):
        own = truth_of(tmp_path, rank)
        near(ledger, tmp_path, "launch", *(row for row in rows if own.get(row)), rank=rank)
        print(f"waiting of rank {rank}: {of(ledger, 'waiting', rank):.1f} ms, {waited_ms:.1f} ms")
        assert of(ledger, "waiting", rank) == pytest.approx(waited_ms, rel=0.05, abs=10)


@pytest.mark.thorough
def test_of_steps_in_vain(tmp_path: Path) -> None:
    ledger = trained(tmp_path, "rare checkpoint@0", "later death", ranks=2)
    assert [one["in_vain"] for one in ledger["attempts"]] == [[100, 114], None]
    near(ledger, tmp_path, "checkpoint", "in vain", attempts=2)


@pytest.mark.thorough
def test_of_a_rank_that_dies_without_a_restart(tmp_path: Path) -> None:
    ledger = trained(tmp_path, "death@1", ranks=2, restarts=0)
    exit_ms = (int((tmp_path / "ended").read_text()) - truth_of(tmp_path, 1)["died"]) * 1e-6
    assert of(ledger, "exit", 1) == pytest.approx(exit_ms, rel=0.05, abs=10)
    near(ledger, tmp_path, "launch", rank=1)


@pytest.mark.thorough
def test_of_a_rank_that_hangs_until_it_is_killed(tmp_path: Path) -> None:
    """The other one waits for it in a step that is not done, and ends by itself: by an error."""
    ledger = trained(tmp_path, "hang@1", ranks=2, restarts=0)
    truth_ms = truth_of(tmp_path, 1)["hang"] * 1e-6
    assert of(ledger, "hang", 0) == 0 and of(ledger, "closing", 0) >= truth_ms - 100
    assert truth_ms - 2600 <= of(ledger, "hang", 1) <= truth_ms + 100
    assert of(ledger, "hang", 1) + of(ledger, "exit", 1) >= truth_ms - 100


@pytest.mark.thorough
def test_of_a_restart_with_fewer_ranks(tmp_path: Path) -> None:
    """The last attempt has one rank of two, which goes on from the checkpoint of both."""
    train = [str(SCRIPT), str(tmp_path), "checkpoint@0", "death"]
    two = [*LAUNCH, "--standalone", "--max-restarts=0", "--nproc-per-node=2", *train]
    one = ["env", "TORCHELASTIC_RESTART_COUNT=1", sys.executable, *train]
    run(tmp_path, "sh", "-c", f"{shlex.join(two)}; {shlex.join(one)}")
    ledger = judged(tmp_path, 2)
    assert [one["in_vain"] for one in ledger["attempts"]] == [[100, 104], None]
    assert [one["ranks"] for one in ledger["attempts"]] == [2, 1]
    near(ledger, tmp_path, "checkpoint", "launch", "restore", attempts=2)
    gone_ms = (int((tmp_path / "ended").read_text()) - truth_of(tmp_path, 1)["died"]) * 1e-6
    assert of(ledger, "not recorded", 1) == pytest.approx(gone_ms, rel=0.05, abs=10)


@pytest.mark.thorough
def test_of_a_pipeline(tmp_path: Path) -> None:
    """Whose last stage is late: the first one waits in its sends and receives."""
    ledger = trained(tmp_path, "pipeline", "late", "pause", ranks=2, script=LOOPS)
    late_ms = truth_of(tmp_path, 1)["late"] * 1e-6
    assert of(ledger, "waiting", 0) + of(ledger, "warm-up", 0) >= 0.95 * late_ms
    assert of(ledger, "waiting", 1) <= 0.5 * of(ledger, "waiting", 0)
    first = ledger["culprits"][0]
    assert (first["rank"], first["row"]) == (1, "other code")
    near(ledger, tmp_path, "pause")


@pytest.mark.thorough
def test_of_stages_of_a_script_of_its_own(tmp_path: Path) -> None:
    """Which `my_utils run` does not start."""
    env = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(LOOPS), str(tmp_path), "stages"]
    subprocess.run(command, cwd=tmp_path, env=env, check=True, timeout=300)
    near(judged(tmp_path, 1), tmp_path, "input", "copies", "compute", "evaluation")


@pytest.mark.thorough
def test_of_an_evaluation_with_work_between_its_batches(tmp_path: Path) -> None:
    """Which is no pause."""
    ledger = trained(tmp_path, "validation")
    near(ledger, tmp_path, "evaluation")
    truth_ms = truth_of(tmp_path)["evaluation"] * 1e-6
    assert of(ledger, "evaluation") + of(ledger, "no core") >= 0.95 * truth_ms


def test_of_two_ranks_that_wait(tmp_path: Path) -> None:
    ledger = trained(tmp_path, "late@1", ranks=2)
    first = ledger["culprits"][0]
    assert (first["rank"], first["row"]) == (1, "other code")
    assert of(ledger, "waiting", 0) > 10 * 0.9 * 130
    launch = {one["part"]: one["ns"] for one in ledger["launch"]}
    truths = [truth_of(tmp_path, rank) for rank in range(2)]
    for part in ("imports", "process group"):
        truth_ns = sum(truth[part] for truth in truths)
        assert launch[part] == pytest.approx(truth_ns, rel=0.1, abs=20e6), part
    (row,) = (one for one in ledger["rows"] if one["row"] == "launch")
    assert sum(launch.values()) == sum(row["ns"])
    near(ledger, tmp_path, "launch")


@pytest.mark.thorough
@pytest.mark.parametrize(
    "ranks, loop, plants",
    [
        (1, "plain", ("input", "pause")),
        (1, "hf", ("evaluation", "checkpoint")),
        (1, "lightning", ("evaluation",)),
        (1, "lightning", ("evaluation", "checkpoint")),
        (1, "accelerate", ("input",)),
        (1, "accelerate", ("checkpoint",)),
        (2, "ddp", ("input", "pause")),
        (2, "fsdp", ("pause",)),
    ],
)
def test_of_loops_of_libraries(
    tmp_path: Path, ranks: int, loop: str, plants: tuple[str, ...]
) -> None:
    ledger = trained(tmp_path, loop, *plants, ranks=ranks, script=LOOPS)
    near(ledger, tmp_path, *plants)


@pytest.mark.thorough
@pytest.mark.parametrize("loop", ["ddp", "accumulation", "fsdp", "tensor parallel", "accelerate"])
def test_of_a_rank_that_is_late_in_each_step(tmp_path: Path, loop: str) -> None:
    """A rank that waits waits for what a busy machine takes of the other, too."""
    ledger = trained(tmp_path, loop, "late", ranks=2, script=LOOPS)
    late_ms = truth_of(tmp_path, 1)["late"] * 1e-6
    waited_ms = of(ledger, "waiting", 0)
    beside_ms = sum(of(ledger, row, 1) for row in ("no core", "quota", "warm-up", "pause"))
    assert late_ms * 0.95 - 10 <= waited_ms + of(ledger, "warm-up", 0)
    assert waited_ms <= late_ms * 1.05 + 10 + beside_ms
    first = ledger["culprits"][0]
    assert (first["rank"], first["row"]) == (1, "other code")


@pytest.mark.thorough
def test_of_two_meetings_a_step_to_which_two_ranks_are_late(tmp_path: Path) -> None:
    ledger = trained(tmp_path, "two meetings", "late", ranks=2, script=LOOPS)
    for rank, other in ((0, 1), (1, 0)):
        late_ms = truth_of(tmp_path, rank)["late"] * 1e-6
        assert of(ledger, "waiting", other) + of(ledger, "warm-up", other) >= late_ms * 0.95 - 10
    assert {one["rank"] for one in ledger["culprits"]} == {0, 1}


@pytest.mark.thorough
def test_of_a_trainer_that_resumes(tmp_path: Path) -> None:
    ledger = trained(tmp_path, "hf", "checkpoint", "death", script=LOOPS)
    assert [one["in_vain"] for one in ledger["attempts"]] == [[60, 74], None]
    near(ledger, tmp_path, "checkpoint", attempts=2)
    assert of(ledger, "restore") > 0 and of(ledger, "restart") > 0


@pytest.mark.thorough
def test_of_a_restart_from_a_checkpoint(tmp_path: Path) -> None:
    ledger = trained(tmp_path, "checkpoint", "death")
    assert [one["in_vain"] for one in ledger["attempts"]] == [[100, 104], None]
    near(ledger, tmp_path, "checkpoint", "launch", "restore", attempts=2)
    assert of(ledger, "restart") > 0 and of(ledger, "in vain") > 0


RESUMES = """
import sys, torch, torch.distributed as dist, torch.distributed.checkpoint as checkpoint
dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 1))
checkpoint.load(model.module.state_dict(), checkpoint_id=sys.argv[1])
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(30):
    model(torch.ones(2, 8)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
dist.destroy_process_group()
"""


@pytest.mark.thorough
def test_of_ranks_that_load_a_checkpoint_together(tmp_path: Path) -> None:
    import torch
    from torch.distributed.checkpoint.state_dict_saver import save

    model = torch.nn.Linear(8, 1)
    save(model.state_dict(), checkpoint_id=tmp_path / "kept", no_dist=True)
    (tmp_path / "train.py").write_text(RESUMES)
    train = [str(tmp_path / "train.py"), str(tmp_path / "kept")]
    run(tmp_path, *LAUNCH, "--standalone", "--nproc-per-node=2", *train)
    ledger = judged(tmp_path, 2)
    for rank in range(2):
        rows = profile_rows.read(tmp_path / "logs" / f"profile_rank_{rank}.csv")
        restore = [row for row in rows if (row.name, row.kind) == ("restore", "END")]
        took_ms = sum(row.duration_ns or 0 for row in restore) * 1e-6
        print(f"restore of rank {rank}: {of(ledger, 'restore', rank)} ms, it took {took_ms} ms")
        assert of(ledger, "restore", rank) == pytest.approx(took_ms, abs=0.001) and took_ms


@pytest.mark.thorough
def test_of_a_hang_that_is_killed(tmp_path: Path) -> None:
    """Its heart beats each 2.5 s at least: what comes after the last beat is not known."""
    ledger = trained(tmp_path, "hang")
    truth_ms = truth_of(tmp_path)["hang"] * 1e-6
    assert truth_ms - 2600 <= of(ledger, "hang") <= truth_ms + 100
    assert of(ledger, "hang") + of(ledger, "exit") >= truth_ms - 100


@pytest.mark.thorough
def test_of_a_hang_that_a_restart_ends(tmp_path: Path) -> None:
    ledger = trained(tmp_path, "hang", "checkpoint", "restart")
    truth_ms = truth_of(tmp_path)["hang"] * 1e-6
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


@pytest.mark.thorough
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
