"""Production jobs of others, with what was published about them (arXiv 2505.05713)."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from my_utils.analysis.replay.inputs import read_operations
from my_utils.analysis.replay.judge import judge_operations
from my_utils.analysis.replay.result import ReplayFinding

from ...conftest import ROOT

JOBS = ROOT.parent / "shared" / "corpus" / "megatron_jobs"

pytest.importorskip("pyarrow", reason="pyarrow is not installed")
pytestmark = [
    pytest.mark.no_torch,
    pytest.mark.skipif(not JOBS.is_dir(), reason=f"corpus of other people's jobs not in {JOBS}"),
]

# Of each job: S and its ideal step, and the step without the culprit, in seconds.
PUBLISHED = {
    "AR": (1.973, 23.4847, 23.4458, (0,)),
    "ST": (1.179, 1.8433, 1.7710, (6, 7)),
}


@pytest.mark.parametrize("job", sorted(PUBLISHED))
def test_culprit_slowdown_and_promise_are_those_published(job: str) -> None:
    factor, ideal_s, without_s, ranks = PUBLISHED[job]
    path = str(JOBS / f"trace-{job}.parquet")
    verdict = judge_operations(read_operations(path), [path])
    assert verdict.status == "found"
    assert verdict.replay_off <= 2e-4
    assert verdict.slowdown is not None
    assert verdict.slowdown.factor == pytest.approx(factor, rel=0.01)
    assert verdict.slowdown.ideal_ns * 1e-9 == pytest.approx(ideal_s, rel=0.01)
    first = verdict.findings[0]
    assert isinstance(first, ReplayFinding)
    assert first.ranks == ranks
    promised_s = (verdict.step_ns - first.saves_ns_a_step) * 1e-9
    assert promised_s == pytest.approx(without_s, rel=0.05)
    assert first.low <= first.share <= first.high
    assert verdict.unknown_share < 0.05


def test_the_command_takes_the_table_as_it_is(tmp_path: Path) -> None:
    path = JOBS / "trace-ST.parquet"
    done = subprocess.run(
        [sys.executable, "-m", "my_utils", "why", str(path)], capture_output=True, text=True
    )
    assert done.returncode == 3, done.stderr
    assert done.stdout.startswith("WAITING FOR stage 3, ranks 6-7 ")
    done = subprocess.run(
        [sys.executable, "-m", "my_utils", "why", str(path), "--json", "--steps", "23:300"],
        capture_output=True, text=True,
    )  # fmt: skip
    data = json.loads(done.stdout)
    assert data["findings"][0]["claim"] == "slow stage"
    assert data["findings"][0]["pipeline_stage"] == 3
    assert data["last_step"] < 300
