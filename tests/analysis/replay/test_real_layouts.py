"""Trainings in layouts whose ranks meet inside a stage, run by torch, each with one slow rank.

What it costs is known: the ranks sleep, and the script says how long.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

from ...conftest import ROOT, RunPython
from ...support.profile_rows import read
from ...support.schemas import loads_checked


def thorough(*values: object) -> object:
    return pytest.param(*values, marks=pytest.mark.thorough)


# layout, ranks, the slow one, the stage it is slow in, what a step would take less without it (ms)
LAYOUTS = (
    thorough("tensor parallel", 2, 0, "input", 28.0),
    thorough("all_reduce in forward", 2, 1, "input", 28.0),
    thorough("fully sharded, tensor parallel", 4, 3, "forward", 80.0),
    thorough("pipeline", 4, 1, "forward", 160.0),
    thorough("experts", 4, 1, "forward", 40.0),
)
# Ranks that meet under DDP alone: by the rules.
UNDER_DDP = (thorough("no_sync"), "gradient accumulation", thorough("uneven"), thorough("Join"))
WITHIN = 0.35  # the machine is shared, and the ranks are more than its processors

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


def verdict_of(run_python: RunPython, world: int, script: str, *arguments: str) -> dict[str, Any]:
    launched = run_python(
        "-m", "my_utils", "run", "-o", "logs", "-m", "torch.distributed.run", "--standalone",
        "--nproc-per-node", str(world), str(ROOT / "tests/analysis/replay" / script), *arguments,
        env={"OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert launched.returncode == 0, launched.stderr[-3000:]
    why = run_python("-m", "my_utils", "why", "logs", "--json")
    verdict: dict[str, Any] = loads_checked("why", why.stdout)
    return verdict


@pytest.mark.parametrize(("layout", "world", "slow", "stage", "saves_ms"), LAYOUTS)
def test_the_slow_rank_is_named_with_what_it_costs(
    layout: str, world: int, slow: int, stage: str, saves_ms: float,
    run_python: RunPython,
) -> None:  # fmt: skip
    verdict = verdict_of(run_python, world, "layout_run.py", layout, str(slow))
    head = f"WAITING FOR {'stage 1, ' * (layout == 'pipeline')}rank {slow}"
    assert verdict["text"][0].startswith(head), verdict["text"]
    found = verdict["findings"][0]
    assert found["ranks"] == [slow], verdict["text"]
    # A call whose result is used after the sleep is waited for there: it may hold the sleep.
    may_hold = {"all_to_all world"} if layout == "experts" else set()
    assert found["evidence"][0]["name"] in {stage, *may_hold}, verdict["text"]
    assert found["saves_ns_a_step"] * 1e-6 == pytest.approx(saves_ms, rel=WITHIN), verdict["text"]
    assert verdict["replay"]["off_share"] <= 2e-4


@pytest.mark.parametrize("layout", UNDER_DDP)
def test_under_ddp_the_slow_rank_is_named_with_what_it_costs(
    layout: str, run_python: RunPython
) -> None:
    verdict = verdict_of(run_python, 2, "layout_run.py", layout, "1")
    found = verdict["findings"][0]
    assert (found["kind"], found["ranks"]) == ("straggler", [1]), verdict["text"]
    assert found["stage"] == "forward", verdict["text"]
    assert found["saves_ns_a_step"] * 1e-6 == pytest.approx(40.0, rel=WITHIN), verdict["text"]


@pytest.mark.thorough
@pytest.mark.skipif(
    importlib.util.find_spec("megatron") is None, reason="megatron-core is not installed"
)
def test_groups_of_megatron_have_roles(run_python: RunPython, tmp_path: Path) -> None:
    """Tensor and pipeline parallel by two; rank 3 is in the second stage."""
    verdict = verdict_of(run_python, 4, "megatron_run.py", "3")
    found = verdict["findings"][0]
    assert found["ranks"] == [3], verdict["text"]
    assert (found["evidence"][0]["name"], found["pipeline_stage"]) == ("forward", 1)
    assert found["saves_ns_a_step"] * 1e-6 == pytest.approx(40.0, rel=WITHIN), verdict["text"]
    rows = [row for path in tmp_path.glob("logs/**/profile_rank_*.csv") for row in read(path)]
    labels = {row.metadata.get("label") for row in rows if row.name == "my_utils.group"}
    assert {"tp", "dp", "world"} <= labels <= {"tp", "dp", "pp", "world", None}
