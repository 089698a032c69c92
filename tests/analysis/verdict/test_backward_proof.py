"""The proof of who comes last inside backward, in small.

`python -m tests.analysis.verdict.backward_proof` is the whole of it. On a machine that is busy
with others, ranks wait for cores at any bucket, and single steps say less.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import pytest

from my_utils.csv2trace import csv_to_trace
from tests.analysis.verdict import backward_proof as proof

pytestmark = [pytest.mark.timeout(900), pytest.mark.long_file]


def proved(*arguments: str) -> tuple[proof.Cell, proof.Cell]:
    """All planted runs, and the healthy ones."""
    cells = proof.prove(proof.parse(arguments))
    print(proof.table(cells))
    planted = [cell for name, cell in cells.items() if name != "healthy"]
    return proof.all_of(planted), cells["healthy"]


@pytest.mark.thorough
def test_rank_and_bucket_are_right(tmp_path: Path) -> None:
    arguments = ["--runs", "4", "--healthy", "2", "--ms", "40", "--logs", str(tmp_path)]
    planted, healthy = proved(*arguments)
    assert planted.right == planted.runs == 4, planted.wrong
    assert planted.steps_right >= 0.8 * planted.steps
    assert healthy.named == 0, healthy.wrong
    arrows_leave_the_planted_rank(proof.parse(arguments), tmp_path)


@pytest.mark.thorough
@pytest.mark.parametrize("wrapper", [pytest.param("fsdp1", marks=pytest.mark.thorough), "fsdp2"])
def test_rank_and_collective_are_right(wrapper: str) -> None:
    planted, healthy = proved(
        "--wrapper", wrapper, "--layers", "4", "--steps", "40", "--runs", "3", "--healthy", "1",
        "--ms", "60",
    )  # fmt: skip
    assert planted.right == planted.runs == 3, planted.wrong
    assert planted.steps_right >= 0.8 * planted.steps > 0
    assert healthy.named == 0, healthy.wrong


def arrows_leave_the_planted_rank(options: argparse.Namespace, folder: Path) -> None:
    """In most of the steps that the ranks looked at, to all the others."""
    csv_to_trace(folder / "logs", folder / "out.json")
    events = json.loads((folder / "out.json").read_text())["traceEvents"]
    arrows = [one for one in events if one.get("ph") == "s"]
    slices = {(one["pid"], one["ts"]): one for one in events if one.get("ph") == "X"}
    from_planted, steps = 0, set()
    for one in arrows:
        step = slices[one["pid"], one["ts"]]["args"]["step"]
        number = (step - proof.FIRST) // options.steps
        plants = proof.plants(options)
        if step >= proof.FIRST and number < len(plants) and plants[number].how:
            from_planted += one["name"].startswith(f"rank {plants[number].rank} comes last")
            steps.add(step)
    looked = options.runs * options.steps // proof.EVERY
    assert len(steps) >= 0.9 * looked
    assert from_planted >= 0.7 * looked * (options.ranks - 1)


@pytest.mark.thorough
def test_rank_and_bucket_are_right_in_all_of_a_hundred_runs() -> None:
    planted, healthy = proved("--runs", "100", "--healthy", "100")
    assert planted.right == planted.runs, planted.wrong
    assert planted.steps_right >= 0.9 * planted.steps
    assert healthy.named <= 1, healthy.wrong
