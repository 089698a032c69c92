"""Evaluations as a whole: what a script does between their batches is part of them.

`my_utils run` records the forward of each batch and the loading of the next one as stages `eval`,
for it does not see what comes between: metrics, decoding, writing what was predicted.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from .rank_files import RankStages
from .run_data import Integers
from .tracks import Mask, training_rows

EVALUATION, INPUT = "eval", "input"


def with_whole_evaluations(rank: RankStages) -> RankStages:
    """The rank, where `my_utils run` recorded, with evaluations that have no gaps: of a step, the
    time in no stage from one stage `eval` to the next is in it, if only the loading of batches is
    between them. The columns are copied only where something changes."""
    if not rank.is_automatic or EVALUATION not in rank.paths:
        return rank
    stages = rank.stages
    around = rank.around[stages["path"]]
    rows = np.flatnonzero(training_rows(rank) & (around < 0))
    rows = rows[np.lexsort((stages["begin_ns"][rows], stages["attempt"][rows]))]
    is_evaluation = stages["path"][rows] == rank.paths.index(EVALUATION)
    is_input = np.zeros(len(rows), bool)
    if INPUT in rank.paths:
        is_input = stages["path"][rows] == rank.paths.index(INPUT)
    begins, ends = stages["begin_ns"].copy(), stages["end_ns"].copy()
    same = stages["attempt"][rows], stages["step"][rows]
    stretches = list(_stretches(is_evaluation, is_evaluation | is_input, same))
    for first, last in stretches:
        here, after = rows[first:last], rows[first + 1 : last + 1]
        ends_it = is_evaluation[first:last]
        ends[here[ends_it]] = stages["begin_ns"][after[ends_it]]
        begins_it = ~ends_it & is_evaluation[first + 1 : last + 1]
        begins[after[begins_it]] = stages["end_ns"][here[begins_it]]
    if not stretches:
        return rank
    return replace(rank, stages={**stages, "begin_ns": begins, "end_ns": ends})


def _stretches(
    is_evaluation: Mask, belongs: Mask, same: tuple[Integers, ...]
) -> Iterator[tuple[int, int]]:
    """The first and the last evaluation of each stretch of rows that belong together."""
    is_new = ~belongs
    for column in same:
        is_new[1:] |= column[1:] != column[:-1]
    number = np.cumsum(is_new)
    places = np.flatnonzero(is_evaluation)
    for one in np.split(places, np.flatnonzero(np.diff(number[places])) + 1):
        if len(one) > 1:
            yield int(one[0]), int(one[-1])
