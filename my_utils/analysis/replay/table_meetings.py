"""Who meets whom in a table, by what its columns say."""

from __future__ import annotations

import numpy as np

from .operations import Ints, numbers_of, occurrence_of


def number_meetings(
    meeting: Ints,
    rows: Ints,
    whole: dict[str, Ints],
    place: tuple[Ints, ...],
    own: tuple[Ints, ...],
) -> None:
    """Numbers the meetings of these rows: the same place and sequence; without a sequence the
    first of a rank in a step meets the first of the others."""
    if not rows.any():
        return
    if "sequence" in whole:
        turn = whole["sequence"][rows]
    else:
        number, _ = numbers_of(whole["step"][rows], *(one[rows] for one in own))
        turn = occurrence_of(number)
    base = int(meeting.max(initial=-1)) + 1
    meeting[rows] = base + numbers_of(*(one[rows] for one in place), turn)[0]


def of_ranks(rank: Ints, values: Ints) -> dict[int, int]:
    """The value of each rank in its first row."""
    ranks, first = np.unique(rank, return_index=True)
    return dict(zip(ranks.tolist(), values[first].tolist(), strict=True))
