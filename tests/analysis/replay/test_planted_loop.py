"""Real trainings of two ranks, one of which pauses: named from torch.profiler's traces and from
`my_utils run`. What it costs, the script has measured with its own clock."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ...conftest import ROOT, RunPython

SCRIPT = str(ROOT / "tests/analysis/replay/planted_loop.py")
PLACES = (
    "before the batch", "in the loader", "after the batch", "before zero_grad", "in a hook",
    "in forward", "in a named range", "after forward", "in the loss", "before backward",
    "in backward", "in a hook of a gradient", "after backward", "before the optimizer",
    "in the optimizer", "after the optimizer", "before a metric", "after a metric",
    "in an evaluation", "at the end",
)  # fmt: skip
PAUSES_MS = (40, 60, 90)
HEALTHY_MOST_MS = 15.0  # a neighbour may take as much of a step
# What a rank pauses is what its steps would take less, up to where the other one is as slow: on a
# machine with other work that takes a while, too.
LEAST, MOST = 0.6, 1.15
IN_SLOW = ("at the end", "in forward")  # the others are thorough
# `my_utils run` records of DDP's backward when its last reduction began, not what came before.
NOT_JUDGED_INSIDE = ("in backward", "in a hook of a gradient")
CASES = [
    pytest.param(
        place, PAUSES_MS[at % 3], at % 2,
        marks=pytest.mark.slow if place in IN_SLOW else pytest.mark.thorough, id=place,
    )
    for at, place in enumerate(PLACES)
]  # fmt: skip

pytestmark = [pytest.mark.timeout(600)]


def verdict_of(
    run_python: RunPython, tmp_path: Path, how: str, *arguments: object
) -> tuple[dict[str, Any], Any]:
    """And ranks × steps × (took, paused) as measured, in ms."""
    recorded = ["-m", "my_utils", "run", "-o", "logs"] if how == "plain" else []
    done = run_python(
        *recorded, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", SCRIPT,
        *map(str, arguments), how, env={"OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    folder = "logs" if how == "plain" else "traces"
    why = run_python("-m", "my_utils", "why", folder, "--json")
    truth = [json.loads((tmp_path / "truth" / f"rank{rank}.json").read_text()) for rank in range(2)]
    verdict: dict[str, Any] = json.loads(why.stdout)
    return verdict, np.array(truth) * 1e3


@pytest.mark.parametrize(("place", "pause_ms", "slow"), CASES)
def test_both_name_the_rank_that_pauses(
    place: str, pause_ms: int, slow: int, run_python: RunPython, tmp_path: Path
) -> None:
    verdict, truth = verdict_of(run_python, tmp_path, "traced", place, pause_ms, slow, 1)
    took, paused = truth[..., 0].mean(), truth[slow, :, 1].mean()
    first = verdict["findings"][0]
    assert first["ranks"] == [slow], verdict["text"]
    assert LEAST <= first["saves_ns_a_step"] * 1e-6 / paused <= MOST, verdict["text"]
    assert verdict["replay"]["off_share"] <= 0.1, verdict["text"]
    assert verdict["step_ms"] <= 1.1 * took, verdict["text"]

    verdict, truth = verdict_of(run_python, tmp_path, "plain", place, pause_ms, slow, 1)
    paused = truth[slow, :, 1].mean()
    if place in NOT_JUDGED_INSIDE:
        assert any("not judged inside" in line for line in verdict["text"]), verdict["text"]
        return
    first = verdict["findings"][0]
    assert first["ranks"] == [slow], verdict["text"]
    assert LEAST <= first["saves_ns_a_step"] * 1e-6 / paused <= MOST, verdict["text"]


@pytest.mark.thorough
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("how", ["traced", "plain"])
def test_neither_accuses_a_healthy_rank(
    how: str, place: str, run_python: RunPython, tmp_path: Path
) -> None:
    verdict, _ = verdict_of(run_python, tmp_path, how, place, 0, 0, 1)
    accused = [
        one for one in verdict["findings"]
        if one["kind"] == "straggler" and one["saves_ns_a_step"] * 1e-6 > HEALTHY_MOST_MS
    ]  # fmt: skip
    assert not accused, verdict["text"]
