"""Runs that wait for a core all the time: with planted counters, and with processes that really
take the core."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from my_utils.analysis.why import Verdict, judge, load_run

from ...support.array_runs import ArrayRun
from ...support.ranks import ROOT

SCRIPT = """
import os, time
import torch

torch.set_num_threads(1)
core = min(os.sched_getaffinity(0))
os.sched_setaffinity(0, [core])

def work(seconds):
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass

for _ in range(3):
    if os.fork() == 0:
        while os.getppid() != 1:
            work(0.1)
        os._exit(0)
net = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
for number in range(40):
    net(torch.randn(4, 8)).sum().backward()
    work(0.01)
    optimizer.step()
os._exit(0)
"""


def waiting(share: float, ranks: int = 1, **changes: object) -> Verdict:
    """Of a run whose ranks, in each step, are ready and on no core for this share of it."""
    run = ArrayRun(ranks=ranks)
    step_us = float(run.took_ns.sum(2).mean()) / 1000
    shape = (ranks, run.steps)
    noise = np.exp(0.05 * run.random.standard_normal(shape))
    counters = {"cpu_us": (1 - share) * step_us * noise, "delay_us": share * step_us * noise}
    return judge(run.data(counters=counters | changes))


@pytest.mark.no_torch
@pytest.mark.parametrize("ranks", [1, 2, 8])
@pytest.mark.parametrize("share", [0.2, 0.5, 0.9])
def test_what_all_steps_wait_is_found_and_would_be_saved(share: float, ranks: int) -> None:
    verdict = waiting(share, ranks)
    one = verdict.findings[0]
    assert (verdict.status, one.kind) == ("found", "short of cores")
    assert one.ranks == tuple(range(ranks))
    assert one.share == pytest.approx(share, rel=0.1)
    assert one.saves_ns_a_step == pytest.approx(share * verdict.step_ns, rel=0.1)
    assert one.detail["ran_shares"][0] == pytest.approx(1 - share, abs=0.05)


@pytest.mark.no_torch
def test_the_words() -> None:
    text = waiting(0.75).lines()
    assert text[0].startswith("SHORT OF CORES on rank 0 ")
    assert text[1] == "  rank 0 ran 25 % of the time that it wanted: other threads had the cores"
    assert text[2].startswith("  would be 2") and text[2].endswith(" x) without it")
    assert "docs/runs/short-of-cores.md" in "\n".join(text)
    assert (Path(ROOT) / "docs/runs/short-of-cores.md").is_file()


@pytest.mark.no_torch
def test_the_quota_is_named_where_it_made_the_wait() -> None:
    run = ArrayRun(ranks=2)
    full = np.full((2, run.steps), 60e3)
    for quota, words in ((0.9, "the quota of the cgroup was used up"), (0.2, "other threads")):
        verdict = judge(
            run.data(counters={"cpu_us": full, "delay_us": full, "quota_us": quota * full})
        )
        line = verdict.lines()[1]
        assert line.startswith("  all ranks ran 50 % of the time that they wanted: ")
        assert words in line


@pytest.mark.no_torch
def test_a_little_waiting_is_ok() -> None:
    assert waiting(0.05).status == "ok"


@pytest.mark.no_torch
def test_the_rank_that_waits_least_counts() -> None:
    """What one rank waits while the others do not is not a lack of cores of the run."""
    run = ArrayRun(ranks=4)
    delay = np.full((4, run.steps), 1e3)
    delay[2] = 50e3
    verdict = judge(run.data(counters={"cpu_us": np.full_like(delay, 60e3), "delay_us": delay}))
    assert verdict.status == "ok"


@pytest.mark.no_torch
def test_what_was_not_recorded_is_not_judged() -> None:
    run = ArrayRun(ranks=2)
    delay = np.full((2, run.steps), 50e3)
    delay[1, ::3] = np.nan
    verdict = judge(run.data(counters={"cpu_us": np.full_like(delay, 60e3), "delay_us": delay}))
    assert verdict.status == "ok"


@pytest.mark.no_torch
def test_single_long_waits_stay_hiccups() -> None:
    run = ArrayRun(ranks=1)
    delay = np.full((1, run.steps), 500.0)
    for step in range(5, 120, 9):
        run.more("forward", 200.0, steps=step)
        delay[0, step] += 190e3
    verdict = judge(run.data(counters={"cpu_us": np.full_like(delay, 90e3), "delay_us": delay}))
    kinds = [one.kind for one in verdict.costly]
    assert len(kinds) == 1 and "short of cores" not in kinds


@pytest.mark.skipif(
    not os.path.exists("/proc/self/schedstat"), reason="the kernel keeps no schedstat"
)
def test_processes_that_share_its_core(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    command = [sys.executable, "-m", "my_utils.run", "--quiet", "-o", "logs", "train.py"]
    done = subprocess.run(
        command, cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(ROOT)}, timeout=300, check=False
    )
    assert done.returncode == 0
    verdict = judge(load_run(tmp_path / "logs"))
    one = verdict.findings[0]
    assert one.kind == "short of cores", verdict.lines()
    assert one.detail["ran_shares"][1] < 0.45  # a quarter, where nobody else has work
    assert one.saves_ns_a_step > 0.5 * verdict.step_ns
