"""What comes between the batches of an evaluation is part of it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from my_utils.analysis.verdict.evaluations import with_whole_evaluations
from my_utils.analysis.verdict.rank_files import RankMetadata, RankStages
from my_utils.core.run_files.run_metadata import parse_note

PATHS = ["forward", "eval", "input", "eval/user"]
Row = tuple[str, int, int]  # path, begin, end


def rank_of(rows: list[Row], steps: list[int] | None = None) -> RankStages:
    count = len(rows)
    stages: dict[str, Any] = {
        "step": np.array(steps or [0] * count, np.int64),
        "path": np.array([PATHS.index(path) for path, _, _ in rows], np.uint32),
        "begin_ns": np.array([begin for _, begin, _ in rows], np.int64),
        "end_ns": np.array([end for _, _, end in rows], np.int64),
        "tid": np.ones(count, np.int64),
        "tag": np.zeros(count, np.uint32),
        "attempt": np.ones(count, np.int32),
    }
    notes = [parse_note(1, "my_utils.run rank=0", 0)]
    return RankStages(RankMetadata(0), PATHS, [0, 1, 2, 1], stages, ["run"], notes=notes)


def spans(rank: RankStages) -> list[tuple[int, int]]:
    columns = rank.stages["begin_ns"].tolist(), rank.stages["end_ns"].tolist()
    return list(zip(*columns, strict=True))


@pytest.mark.parametrize(
    ("rows", "wanted"),
    [
        ([("eval", 0, 10), ("eval", 30, 40)], [(0, 30), (30, 40)]),
        ([("eval", 0, 10), ("forward", 15, 20), ("eval", 30, 40)], None),
        (
            [("eval", 0, 10), ("input", 15, 20), ("eval", 30, 40), ("eval", 50, 55)],
            [(0, 15), (15, 20), (20, 50), (50, 55)],
        ),
        ([("input", 0, 5), ("eval", 10, 20), ("input", 25, 30), ("forward", 40, 50)], None),
        (
            [("eval", 0, 10), ("eval/user", 2, 8), ("eval", 20, 30)],
            [(0, 20), (2, 8), (20, 30)],
        ),
        (  # in any order, as several threads write them
            [("eval", 30, 40), ("eval", 0, 10)],
            [(30, 40), (0, 30)],
        ),
    ],
)  # fmt: skip
def test_gaps(rows: list[Row], wanted: list[tuple[int, int]] | None) -> None:
    rank = rank_of(rows)
    before = spans(rank)
    assert spans(with_whole_evaluations(rank)) == (wanted or before)
    assert spans(rank) == before


def test_evaluations_of_two_steps_are_apart() -> None:
    rank = rank_of([("eval", 0, 10), ("eval", 30, 40)], [0, 1])
    assert spans(with_whole_evaluations(rank)) == [(0, 10), (30, 40)]


def test_stages_that_a_script_times_itself_stay() -> None:
    """Its eval may be one of several things."""
    rank = rank_of([("eval", 0, 10), ("eval", 30, 40)])
    rank.notes.clear()
    assert with_whole_evaluations(rank) is rank
