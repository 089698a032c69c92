"""Training in which torch works out shapes and graphs is the same under each tool, bit for bit."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ...support.variants import gate_runs

pytest.importorskip("torch")

ROOT = Path(__file__).resolve().parents[3]
RUNS = Path(__file__).parent / "traced_runs.py"


@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.parametrize(
    "case",
    gate_runs(
        ("torch.compile",),
        [
            *("fsdp2", "tensor parallel", "tensor parallel and fsdp2", "pipeline"),
            *("FakeTensorMode", "torch.compile", "torch.export"),
        ],
    ),
)
def test_each_tool_in_fresh_processes(case: str) -> None:
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    done = subprocess.run(
        [sys.executable, RUNS, case],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=200,
    )
    said = set(done.stdout.splitlines())
    good = {f"{name} good" for name in ("compare", "nan", "nan by step", "recorder")}
    assert good <= said, f"{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
