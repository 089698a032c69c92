"""Real trainings of two ranks, one of which pauses: named from torch.profiler's traces and from
`my_utils run`. What it costs, the script has measured with its own clock.

Other programs run on the machine, and what they take is no fault of a rank. So pauses are longer
than that, and of a healthy run only what nobody's load explains is wrong.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
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
# Place, length in ms, rank, steps from one pause to the next.
OTHERS = (
    ("in forward", 20, 1, 1), ("in forward", 300, 0, 1), ("before the batch", 300, 1, 1),
    ("at the end", 20, 0, 1), ("after the optimizer", 300, 0, 1), ("in the optimizer", 25, 0, 1),
    ("in forward", 90, 1, 5), ("at the end", 120, 0, 4), ("before backward", 90, 0, 7),
    ("in the loader", 120, 1, 4), ("after forward", 80, 0, 2), ("before backward", 80, 1, 3),
    ("in accumulation", 60, 1, 1), ("in accumulation", 40, 0, 1), ("in a checkpoint", 120, 1, 5),
    ("in a checkpoint", 200, 0, 5), ("in an evaluation", 200, 0, 3), ("before a metric", 200, 1, 6),
)  # fmt: skip
TURNS = (("in forward", 60, 1), ("at the end", 60, 1), ("after the batch", 60, 2))
HEALTHY = (*PLACES, "in accumulation", "in a checkpoint")
HEALTHY_MOST_MS = 15.0  # a neighbour may take as much of a step
# What a rank pauses is what its steps would take less, up to where the other one is as slow: on a
# machine with other work that takes a while, too.
LEAST, MOST = 0.6, 1.15
IN_SLOW = ("at the end", "in forward")  # the others are thorough
# `my_utils run` records of DDP's backward when its last reduction began, not what came before.
NOT_JUDGED_INSIDE = ("in backward", "in a hook of a gradient")
Case = tuple[str, int, int | str, int]
EVEN: list[Case] = [(place, PAUSES_MS[at % 3], at % 2, 1) for at, place in enumerate(PLACES)]

pytestmark = [pytest.mark.timeout(1800)]


def launch(run_python: RunPython, how: str, *cases: Case) -> None:
    recorded = ["-m", "my_utils", "run", "-o", "logs"] if how == "plain" else []
    done = run_python(
        *recorded, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", SCRIPT,
        how, json.dumps(cases), env={"OMP_NUM_THREADS": "1"}, timeout=1500,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]


def verdict_of(
    run_python: RunPython, tmp_path: Path, how: str, number: int = 0
) -> tuple[dict[str, Any], Any]:
    """And ranks × steps × (took, paused) as measured, in ms."""
    folder = "logs" if how == "plain" else f"{number}/traces"
    why = run_python("-m", "my_utils", "why", folder, "--json")
    truth = [
        json.loads((tmp_path / str(number) / "truth" / f"rank{rank}.json").read_text())
        for rank in range(2)
    ]
    verdict: dict[str, Any] = json.loads(why.stdout)
    return verdict, np.array(truth) * 1e3


def what_is_wrong(case: Case, how: str, verdict: dict[str, Any], truth: Any) -> str:
    """ "" where the rank that pauses is named, with what it costs."""
    place, _, slow, every = case
    paused = truth[slow, :, 1].mean()
    said = [one for one in verdict["findings"] if one["kind"] != "warm-up"]
    if how == "plain" and place in NOT_JUDGED_INSIDE:
        is_said = any("not judged inside" in line for line in verdict["text"])
        return "" if is_said and len(said) == 1 else "more is said than what can be seen"
    if not said or said[0]["ranks"] != [slow]:
        return "another rank" if said else "nobody"
    # In a few steps, what neighbours take of them counts for more.
    least, most = (LEAST, MOST) if every == 1 else (LEAST, 1.5)
    if not least <= said[0]["saves_ns_a_step"] * 1e-6 / paused <= most:
        return "another cost"
    if how == "traced" and verdict["replay"]["off_share"] > 0.1:
        return "another step"
    return "another step" if verdict["step_ms"] > 1.1 * truth[..., 0].mean() else ""


def fails_of(run_python: RunPython, tmp_path: Path, cases: Sequence[Case]) -> list[str]:
    """All cases in one launch, traced."""
    launch(run_python, "traced", *cases)
    fails = []
    for number, case in enumerate(cases):
        verdict, truth = verdict_of(run_python, tmp_path, "traced", number)
        wrong = what_is_wrong(case, "traced", verdict, truth)
        if wrong:
            fails += [f"{case}: {wrong}", *verdict["text"]]
    return fails


@pytest.mark.thorough
def test_traces_name_the_rank_that_pauses(run_python: RunPython, tmp_path: Path) -> None:
    cases = [case for case in EVEN if case[0] in IN_SLOW]
    fails = fails_of(run_python, tmp_path, [*cases, ("in forward", 300, 0, 1)])
    assert not fails, "\n".join(fails)


@pytest.mark.thorough
def test_traces_name_it_wherever_it_pauses(run_python: RunPython, tmp_path: Path) -> None:
    fails = fails_of(run_python, tmp_path, [*EVEN, *OTHERS])
    assert not fails, "\n".join(fails)


@pytest.mark.thorough
@pytest.mark.parametrize(
    "case",
    [
        pytest.param(
            case, id=" ".join(map(str, case)),
            marks=pytest.mark.slow if case in EVEN and case[0] in IN_SLOW else pytest.mark.thorough,
        )
        for case in (*EVEN, *OTHERS)
    ],
)  # fmt: skip
def test_a_run_names_the_rank_that_pauses(
    case: Case, run_python: RunPython, tmp_path: Path
) -> None:
    launch(run_python, "plain", case)
    verdict, truth = verdict_of(run_python, tmp_path, "plain")
    assert not what_is_wrong(case, "plain", verdict, truth), verdict["text"]


@pytest.mark.thorough
@pytest.mark.parametrize("how", ["traced", "plain"])
@pytest.mark.parametrize(("place", "pause_ms", "every"), TURNS)
def test_ranks_that_take_turns_are_both_named_or_none(
    how: str, place: str, pause_ms: int, every: int, run_python: RunPython, tmp_path: Path
) -> None:
    launch(run_python, how, (place, pause_ms, "turns", every))
    verdict, _ = verdict_of(run_python, tmp_path, how)
    named = {rank for one in verdict["findings"] for rank in one["ranks"]}
    is_moving = verdict["findings"][0]["kind"] == "moving imbalance"
    assert is_moving or named == {0, 1}, verdict["text"]


def accused(verdict: dict[str, Any]) -> bool:
    return any(
        len(one["ranks"]) == 1 and one["saves_ns_a_step"] * 1e-6 > HEALTHY_MOST_MS
        for one in verdict["findings"]
    )


@pytest.mark.thorough
def test_traces_accuse_no_healthy_rank(run_python: RunPython, tmp_path: Path) -> None:
    """Nor one that only came late to the first step."""
    cases = [*((place, 0, 0, 1) for place in HEALTHY), ("before the first step", 1500, 1, 1000)]
    launch(run_python, "traced", *cases)
    verdicts = [verdict_of(run_python, tmp_path, "traced", at)[0] for at in range(len(cases))]
    wrong = [verdict["text"] for verdict in verdicts if accused(verdict)]
    assert not wrong, wrong


@pytest.mark.thorough
@pytest.mark.parametrize("place", [*HEALTHY, "before the first step"])
def test_a_run_accuses_no_healthy_rank(place: str, run_python: RunPython, tmp_path: Path) -> None:
    late = (1500, 1, 1000) if place == "before the first step" else (0, 0, 1)
    launch(run_python, "plain", (place, *late))
    verdict, _ = verdict_of(run_python, tmp_path, "plain")
    assert not accused(verdict), verdict["text"]
