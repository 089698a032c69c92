"""What comes back every so many steps: a pause, a checkpoint, an evaluation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ..verdict.kinds import UNTIMED
from ..verdict.quantiles import spread_of
from ..verdict.run_data import Integers, Matrix, RunData
from ..verdict.work import Work
from .levels import Series

LONG = 0.5  # of a step, by which one must be longer
SCATTERS = 8.0
TIMES_MIN = 4
REGULAR = 0.8  # of the distances, that must be the same
WITHIN = 0.02  # of a distance
EVERYONE = 0.8  # of the ranks, that take longer at once
LEAST_SHARE = 0.005  # of the time


@dataclass(frozen=True)
class Period:
    """Each so many steps some ranks take longer in a stage.

    every: steps from one to the next. first_step: of the first. times: how many. ranks: those, ()
    for all. stage: its path, None for what no stage times. each_ns: what the run takes longer, in
    the median. share: of all judged time.
    """

    every: int
    first_step: int
    times: int
    ranks: tuple[int, ...]
    stage: str | None
    each_ns: float
    share: float


def periods_of(
    run: RunData, columns: Integers, works: Sequence[Work], step_ns: Series
) -> list[Period]:
    """columns: the judged steps. works: of all groups, in these steps. step_ns: what each takes, as
    `step_times`. The most costly first."""
    usual = float(np.median(step_ns))
    longer = step_ns - usual
    limit = max(LONG * usual, SCATTERS * float(spread_of(longer[None, :], 1)[0]))
    places = np.flatnonzero(longer > limit)
    if len(places) < TIMES_MIN:
        return []
    causes = _causes(works, places, longer[places])
    found = []
    for cause in dict.fromkeys(one for one in causes if one is not None):
        those = places[[one == cause for one in causes]]
        share = float(longer[those].sum() / step_ns.sum())
        every = _every(those)
        if every is not None and share >= LEAST_SHARE:
            first, each_ns = int(run.steps[columns[those[0]]]), float(np.median(longer[those]))
            ranks = tuple(run.ranks[list(cause.rows)].tolist())
            found.append(
                Period(
                    every * run.width, first, len(those), ranks, cause.stage,
                    each_ns * run.width, share,
                )
            )  # fmt: skip
    return sorted(found, key=lambda one: -one.share)


class _Cause(NamedTuple):
    rows: tuple[int, ...]  # of the run, () for all
    stage: str | None


def _causes(works: Sequence[Work], places: Integers, longer_ns: Matrix) -> list[_Cause | None]:
    """Of each long step the ranks that take longer themselves, and the stage; None where no work
    shows it."""
    found: list[_Cause | None] = [None] * len(places)
    most = LONG * longer_ns
    ranks = sum(len(work.rows) for work in works)
    for work in works:
        usual = np.median(work.own, axis=1)
        for at, place in enumerate(places):
            above = work.own[:, place] - usual
            row, part = np.unravel_index(int(above.argmax()), above.shape)
            if above[row, part] >= most[at]:
                most[at] = above[row, part]
                alike = work.rows[above[:, part] >= 0.5 * above[row, part]]
                is_all = len(alike) >= EVERYONE * ranks
                name = work.parts[int(part)]
                found[at] = _Cause(
                    () if is_all else tuple(alike.tolist()), None if name == UNTIMED else name
                )
    return found


def _every(places: Integers) -> int | None:
    """Steps from one to the next, where that is the same."""
    if len(places) < TIMES_MIN:
        return None
    distances = np.diff(places)
    every = float(np.median(distances))
    same = np.abs(distances - every) <= max(1.0, WITHIN * every)
    return round(every) if every > 1 and same.mean() >= REGULAR else None
