"""Trainings in layouts whose ranks meet inside a stage, run by torch, each with one slow rank.

What it costs is known: the ranks sleep, and the script says how long.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from ...conftest import ROOT, RunPython
from ...support.schemas import loads_checked

# layout, ranks, the slow one, the stage it is slow in, what a step would take less without it (ms)
LAYOUTS = (
    ("tensor parallel", 2, 0, "input", 28.0),
    ("all_reduce in forward", 2, 1, "input", 28.0),
    ("fully sharded, tensor parallel", 4, 3, "forward", 80.0),
    ("pipeline", 4, 1, "forward", 160.0),
)
WITHIN = 0.35  # the machine is shared, and the ranks are more than its processors

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.mark.parametrize(("layout", "world", "slow", "stage", "saves_ms"), LAYOUTS)
def test_the_slow_rank_is_named_with_what_it_costs(
    layout: str, world: int, slow: int, stage: str, saves_ms: float,
    run_python: RunPython, tmp_path: Path,
) -> None:  # fmt: skip
    script = str(ROOT / "tests/analysis/replay/layout_run.py")
    launched = run_python(
        "-m", "my_utils", "run", "-o", "logs", "-m", "torch.distributed.run", "--standalone",
        "--nproc-per-node", str(world), script, layout, str(slow),
        env={"OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert launched.returncode == 0, launched.stderr[-3000:]
    assert f"WAITING FOR {'stage 1, ' * (layout == 'pipeline')}rank {slow}" in launched.stderr
    verdict = loads_checked("why", run_python("-m", "my_utils", "why", "logs", "--json").stdout)
    found = verdict["findings"][0]
    assert found["ranks"] == [slow], verdict["text"]
    assert found["evidence"][0]["name"] == stage, verdict["text"]
    assert found["saves_ns_a_step"] * 1e-6 == pytest.approx(saves_ms, rel=WITHIN), verdict["text"]
    assert verdict["replay"]["off_share"] <= 2e-4
