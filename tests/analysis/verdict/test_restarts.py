"""A job that is started again in its directory is judged as a whole: real processes, which are
killed, come back from a checkpoint, or with another world size."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from my_utils.analysis.diff.load import load_steps
from my_utils.analysis.verdict.device import by_the_device
from my_utils.analysis.verdict.result import Verdict
from my_utils.analysis.verdict.run_data import RunData
from my_utils.analysis.why import judge, load_run

from ...conftest import RunPython
from ...support.run_csv import RankCsv

PROGRAM = """
import json, os, signal, sys, time
from my_utils import GlobalLogger, MyTimer

(first, last), loader_s, rank, world_size, killed = json.loads(sys.argv[1])
if rank is None:  # of torchrun
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    is_again = os.environ["TORCHELASTIC_RESTART_COUNT"] == "1"
    (first, last), loader_s, killed = ((35, 80), 0.03, False) if is_again else ((0, 40), 2e-4, True)
timer = MyTimer(tag="train")
with timer.time_stage("load checkpoint"):
    pass
GlobalLogger().setup("logs", rank, world_size, console=False, max_csv_bytes=9000)
for step in range(first, last):
    timer.set_step(step)
    with timer.time_stage("input"):
        time.sleep(loader_s)
    with timer.time_stage("forward"):
        time.sleep(0.004)
    timer.step()
if killed:
    os.kill(os.getpid(), signal.SIGKILL)
"""


def start(
    run_python: RunPython, steps: tuple[int, int], loader_ms: float, *,
    rank: int = 0, world_size: int = 1, killed: bool = False,
) -> None:  # fmt: skip
    arguments = json.dumps([steps, loader_ms * 1e-3, rank, world_size, killed])
    done = run_python("-c", PROGRAM, arguments)
    assert done.returncode == (-signal.SIGKILL if killed else 0), done.stderr


def says_input_since(verdict: Verdict, run: RunData, step: int) -> bool:
    """The steps just before count where a busy machine made them as long as those from then on."""
    (first, *_) = verdict.findings
    is_input = first.kind == "input" or (first.kind == "slower since" and first.stage == "input")
    if not is_input or first.since_step is None or first.since_step > step:
        return False
    before = (run.steps >= first.since_step) & (run.steps < step)
    return bool((run.step_ns[:, before].max(0) > 0.015e9).all())


@pytest.mark.no_torch
@pytest.mark.parametrize("killed", [False, True])
def test_a_script_that_goes_on_in_its_directory(
    run_python: RunPython, tmp_path: Path, killed: bool
) -> None:
    start(run_python, (0, 40), 0.2, killed=killed)
    start(run_python, (40, 80), 30.0)
    run = load_run(tmp_path / "logs")
    assert run.steps.tolist() == list(range(80)) and run.attempts == 2
    verdict = judge(run)
    assert says_input_since(verdict, run, 40), verdict
    assert " of 2 attempts" in verdict.lines()[-1]
    # The second process takes its time to start, which is not a step's.
    assert run.step_ns[0, 39] < 0.5 * (run.step_begins[0, 40] - run.step_begins[0, 39])
    assert load_steps(tmp_path / "logs").parts.shape[1] == 79


@pytest.mark.no_torch
def test_of_steps_that_were_done_again_the_last_copy_counts(
    run_python: RunPython, tmp_path: Path
) -> None:
    start(run_python, (0, 40), 0.2)
    start(run_python, (35, 80), 30.0)
    run = load_run(tmp_path / "logs")
    assert run.steps.tolist() == list(range(80)) and run.repeated == (35, 39)
    verdict = judge(run)
    assert says_input_since(verdict, run, 35), verdict
    assert "of 2 attempts, steps 35:40 done again" in verdict.lines()[-1]
    assert verdict.as_data()["repeated_steps"] == [35, 39]


@pytest.mark.no_torch
def test_a_start_from_the_first_step_leaves_the_older_one_out_and_says_so(
    run_python: RunPython, tmp_path: Path
) -> None:
    start(run_python, (0, 40), 0.2)
    start(run_python, (0, 30), 0.2)
    verdict = judge(load_run(tmp_path / "logs"))
    assert verdict.last_step == 29 and verdict.older_attempts == 1
    assert "1 older attempt left out" in verdict.lines()[-1]


@pytest.mark.no_torch
def test_with_fewer_ranks(run_python: RunPython, tmp_path: Path) -> None:
    for rank in range(2):
        start(run_python, (0, 40), 0.2, rank=rank, world_size=2)
    start(run_python, (40, 80), 30.0)
    run = load_run(tmp_path / "logs")
    assert run.ranks.tolist() == [0] and run.world_size == 1
    assert "rank 1 is left out: the last attempt has fewer ranks" in run.problems
    assert says_input_since(judge(run), run, 40)


@pytest.mark.no_torch
def test_with_fewer_ranks_where_each_host_counts_its_own_restarts(tmp_path: Path) -> None:
    """Rank 2 of the first attempt was where rank 1 is now; that of rank 0 is another host."""
    for rank, host, world_size, begin_s, attempt in (
        (2, "node-2", 3, 1000.0, 1), (0, "node-1", 2, 2000.0, 1), (1, "node-2", 2, 2000.0, 2),
    ):  # fmt: skip
        about = f"pid=1,rank={rank},world_size={world_size},attempt={attempt},host={host}"
        lines = [
            "timestamp_unix,readable_time,machine_id,step,event_name,event_type,duration_ms,metadata",
            f'{begin_s},,{host},0,my_utils.process,INSTANT,,"tid=1,{about}"',
        ]
        for step in range(40):
            lines.append(f"{begin_s + step * 0.1:.1f},,{host},{step},forward,END,50.0,tid=1")
        path = tmp_path / f"profile_rank_{rank}.csv"
        path.write_text("".join(f"{line}\n" for line in lines))
    run = load_run(tmp_path)
    assert run.ranks.tolist() == [0, 1]
    assert "rank 2 is left out: the last attempt has fewer ranks" in run.problems


@pytest.mark.no_torch
def test_with_more_ranks(run_python: RunPython, tmp_path: Path) -> None:
    start(run_python, (0, 30), 0.2)
    for rank in range(2):
        start(run_python, (30, 60), 0.2, rank=rank, world_size=2)
    run = load_run(tmp_path / "logs")
    is_there = np.isfinite(run.step_ns[:, 1:])  # step 0 has what was before the first step
    assert is_there[0].all() and np.flatnonzero(is_there[1]).tolist() == list(range(29, 59))
    assert judge(run).judged_ranks == 2


TRAINING = """
import sys, time, torch
from my_utils import GlobalLogger

class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 40
    def __getitem__(self, index):
        time.sleep(float(sys.argv[1]))
        return torch.ones(4)

GlobalLogger().setup("logs", rank=0, world_size=1, console=False)
model = torch.nn.Linear(4, 4)
model.register_forward_hook(lambda *args: time.sleep(0.004))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for batch in torch.utils.data.DataLoader(Data()):
    optimizer.zero_grad()
    model(batch).sum().backward()
    optimizer.step()
"""


@pytest.mark.slow
def test_the_closing_verdict_is_about_all_attempts(tmp_path: Path) -> None:
    """`my_utils run` counts iterations from 0 in each of them."""
    (tmp_path / "train.py").write_text(TRAINING, encoding="utf-8")
    for loader_s in ("0.0002", "0.03"):
        done = subprocess.run(
            [sys.executable, "-m", "my_utils", "run", "train.py", loader_s],
            cwd=tmp_path, env=dict(os.environ), capture_output=True, text=True, timeout=120,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
    assert " of 2 attempts" in done.stderr, done.stderr
    run = load_run(tmp_path / "logs")
    assert run.steps.tolist() == list(range(80)) and run.renumbered
    assert says_input_since(judge(run), run, 40), done.stderr


@pytest.mark.slow
def test_a_restart_by_torchrun(tmp_path: Path) -> None:
    """The first attempt is killed at step 40, and its checkpoint is of step 35."""
    (tmp_path / "train.py").write_text(PROGRAM, encoding="utf-8")
    arguments = json.dumps([(0, 0), 0, None, None, None])
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--max-restarts=1",
         "--monitor-interval=0.1", "train.py", arguments],
        cwd=tmp_path, env=dict(os.environ), capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    run = load_run(tmp_path / "logs")
    assert run.attempts == 2 and run.ranks.tolist() == [0, 1]
    verdict = judge(run)
    assert says_input_since(verdict, run, run.repeated[0] if run.repeated else 40), verdict
    assert verdict.findings[0].since_step == 35


@pytest.mark.no_torch
def test_attempts_that_overlap_in_time_are_one_whatever_their_numbers(tmp_path: Path) -> None:
    """A rank that comes with the second attempt counts it as its first."""
    for rank, begins_ms in ((0, (0.0, 1000.0)), (1, (1002.0,))):
        csv = RankCsv(rank, 2)
        for attempt, begin_ms in enumerate(begins_ms, 1):
            csv.process(attempt, begin_ms)
            csv.note("run", {"device": "cpu"}, begin_ms)
            for step in range(30):
                csv.step(step, begin_ms + 10 * step, [("forward", 0.0, 5.0)])
        csv.write(tmp_path)
    run = load_run(tmp_path)
    assert run.steps.tolist() == list(range(60)) and run.attempts == 2
    is_there = np.isfinite(run.step_ns)
    assert is_there[0].all() and np.flatnonzero(is_there[1]).tolist() == list(range(30, 60))


@pytest.mark.no_torch
def test_the_time_between_attempts_is_no_step_of_the_gpu_either(tmp_path: Path) -> None:
    csv = RankCsv()
    for attempt, begin_ms in ((1, 0.0), (2, 5000.0)):
        csv.process(attempt, begin_ms)
        csv.note("run", {"device": "cuda"}, begin_ms)
        for step in range(20):
            at = begin_ms + 10 * step
            csv.stage("forward", step, at, at + 1, gpu=(at + 1, at + 9))
    csv.write(tmp_path)
    run = by_the_device(load_run(tmp_path))
    assert run is not None and len(run.steps) == 40
    assert np.nanmax(run.step_ns) < 20e6


@pytest.mark.no_torch
def test_an_end_is_that_of_the_last_attempt(tmp_path: Path) -> None:
    """It was killed, and so wrote no row of its end."""
    csv = RankCsv()
    for attempt, begin_ms in ((1, 0.0), (2, 5000.0)):
        csv.process(attempt, begin_ms)
        csv.note("run", {"device": "cpu"}, begin_ms)
        for step in range(30):
            csv.step(step, begin_ms + 10 * step, [("forward", 0.0, 5.0)])
        if attempt == 1:
            csv.note("run_end", {"error": "RuntimeError"}, begin_ms + 300)
    csv.write(tmp_path)
    (tmp_path / "run.json").write_text('{"exit_statuses":{"0":-9},"exit_status":-9}')
    first = judge(load_run(tmp_path)).lines()[0]
    assert first.startswith("ENDED EARLY: killed by SIGKILL on rank 0 in step ")
