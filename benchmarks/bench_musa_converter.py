"""musa-converter on 1,000 scripts: two processes against one."""

from __future__ import annotations

import statistics
import tempfile
import time
from pathlib import Path

from benchmarks.harness import Claim
from my_utils.musa.converter import convert_project

SCRIPT = '''"""A script."""
import torch

DEVICE = "cuda:0"


def step(model, batch):
    """Uses cuda."""
    batch = {name: value.cuda(non_blocking=True) for name, value in batch.items()}
    torch.cuda.synchronize()
    return model(batch).to(f"cuda:{batch}")
'''


def seconds(folder: Path, jobs: int) -> float:
    began = time.perf_counter()
    outcomes = list(convert_project(folder, [], write=False, jobs=jobs))
    assert all(outcome.changes == 4 for outcome in outcomes)
    return time.perf_counter() - began


def run(smoke: bool) -> list[Claim]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for number in range(40 if smoke else 1_000):
            (folder / f"script{number}.py").write_text(SCRIPT, encoding="utf-8")
        times: dict[int, list[float]] = {1: [], 2: []}
        for _ in range(1 if smoke else 3):
            for jobs, found in times.items():
                found.append(seconds(folder, jobs))
    one, two = (1e3 * statistics.median(found) for found in times.values())
    return [Claim("musa-converter, 1,000 files, 2 jobs", two, "1 job", one, "ms", 1.7, faster=True)]
