"""What the host took from each iteration, beside what the script itself measures."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ..support.profile_rows import Row, read
from ..support.ranks import ROOT

pytestmark = pytest.mark.timeout(300)

# Iterations of all kinds: a collection, work, sleep, and nothing of these.
SCRIPT = """
import gc, json, sys, time
import torch

torch.set_num_threads(1)
gc.disable()
net = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
kept = [[number] for number in range(300_000)]
collected = 0.0

def measure(phase, info):
    global collected
    collected += time.perf_counter() if phase == "stop" else -time.perf_counter()

gc.callbacks.append(measure)
measured = []
for number in range(int(sys.argv[1])):
    measured.append((time.thread_time(), collected))
    net(torch.randn(4, 8)).sum().backward()
    optimizer.step()
    if number % 4 == 1:
        gc.collect()
    if number % 4 == 2:
        until = time.thread_time() + 0.03
        while time.thread_time() < until:
            pass
    if number % 4 == 3:
        time.sleep(0.03)
    time.sleep(float(sys.argv[2]))
print(json.dumps(measured))
"""


def run(script: str, folder: Path, iterations: int, pause_s: float) -> tuple[Any, list[Row]]:
    """What the script measured before each iteration, and the rows of the host."""
    (folder / "train.py").write_text(script)
    done = subprocess.run(
        [sys.executable, "-m", "my_utils", "run", "--quiet", "-o", "logs", "train.py",
         str(iterations), str(pause_s)],
        cwd=folder, env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    rows = [row for row in read(folder / "logs/profile_rank_0.csv") if row.name == "host"]
    assert {row.kind for row in rows} == {"COUNTER"}
    return json.loads(done.stdout), rows


@pytest.mark.slow
def test_what_each_iteration_took(tmp_path: Path) -> None:
    measured, rows = run(SCRIPT, tmp_path, 24, 0.002)
    # The first reading is that before iteration 1, and the last iteration has no next one.
    assert [row.step for row in rows] == list(range(1, 23))
    collected_us = 0
    for row in rows[2:]:  # the root modules are known from step 1 on
        took = {key: int(value) for key, value in row.metadata.items()}
        (cpu, _), (cpu_then, _) = measured[row.step : row.step + 2]
        collected_us += took["gc2_us"]
        assert took["cpu_us"] == pytest.approx(1e6 * (cpu_then - cpu), rel=0.1, abs=1000)
        assert took["gc0_us"] == took["gc1_us"] == 0
        assert (took["gc2_us"] > 0) == (row.step % 4 == 1)
        assert row.step % 4 == 1 or (took["cpu_us"] > 30_000) == (row.step % 4 == 2)
    # The two do not look at the clock at the same time, and the thread may be put off in between.
    assert collected_us == pytest.approx(1e6 * (measured[23][1] - measured[3][1]), rel=0.2)


@pytest.mark.slow
def test_short_iterations_share_a_row(tmp_path: Path) -> None:
    _, rows = run(SCRIPT.replace("number % 4 ==", "number ==-"), tmp_path, 400, 0)
    assert 0 < len(rows) < 399
    assert [row.step for row in rows] == sorted({row.step for row in rows})
