"""The proof of who comes last inside backward, in small.

`python -m tests.verdict.backward_proof` is the whole of it. On a machine that is busy with others,
ranks wait for cores at any bucket, and single steps say less.
"""

from __future__ import annotations

import pytest

from tests.verdict import backward_proof as proof

pytestmark = [pytest.mark.timeout(900), pytest.mark.long_file]


def proved(*arguments: str) -> tuple[proof.Cell, proof.Cell]:
    """All planted runs, and the healthy ones."""
    cells = proof.prove(proof.parse(arguments))
    print(proof.table(cells))
    planted = [cell for name, cell in cells.items() if name != "healthy"]
    return proof.all_of(planted), cells["healthy"]


@pytest.mark.slow
def test_rank_and_bucket_are_right() -> None:
    planted, healthy = proved("--runs", "4", "--healthy", "2", "--ms", "40")
    assert planted.right == planted.runs == 4, planted.wrong
    assert planted.steps_right >= 0.8 * planted.steps
    assert healthy.named == 0, healthy.wrong


@pytest.mark.thorough
def test_rank_and_bucket_are_right_in_all_of_a_hundred_runs() -> None:
    planted, healthy = proved("--runs", "100", "--healthy", "100")
    assert planted.right == planted.runs, planted.wrong
    assert planted.steps_right >= 0.9 * planted.steps
    assert healthy.named <= 1, healthy.wrong
