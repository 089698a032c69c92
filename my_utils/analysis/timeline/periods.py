"""What comes back every so many steps: a pause, a checkpoint, an evaluation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

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
MISSED_MAX = 2  # between two, such as those that another rank's wait hides
LARGE, LARGEST = 0.5, 0.9  # of that quantile: what is shorter may be noise among them
EVERYONE = 0.8  # of the ranks, that take longer at once
LEAST_SHARE = 0.005  # of the time


@dataclass(frozen=True)
class Period:
    """Each so many steps some ranks take longer in a stage.

    every: steps from one to the next. first_step: of the first. times: how many. ranks: those, ()
    for all. stage: its path, None for what no stage times, and where it varies. each_ns: what the
    run takes longer, in the median. share: of all judged time. varies: whether it is in one stage
    and in another, as what comes from outside.
    """

    every: int
    first_step: int
    times: int
    ranks: tuple[int, ...]
    stage: str | None
    each_ns: float
    share: float
    varies: bool = False


def find_periods(
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
    begins_ns = np.cumsum(step_ns) - step_ns
    whole_ns = float(step_ns.sum())
    left = np.ones(len(causes), bool)
    found = []
    for varies in (False, True):
        for cause, numbers in _groups(causes, left, varies=varies).items():
            those = np.array(numbers, np.int64)
            if varies:
                those = those[_large(longer[places[those]])]
            at = places[those]
            every = _every(at, begins_ns[at], MISSED_MAX if varies else 0)
            if every is not None and longer[at].sum() >= LEAST_SHARE * whole_ns:
                left[those] = False
                found.append(_period(run, columns[at], every, cause, longer[at], whole_ns, varies))
    return sorted(found, key=lambda one: -one.share)


def _period(
    run: RunData, columns: Integers, every: int, cause: _Cause, longer_ns: Series,
    whole_ns: float, varies: bool,
) -> Period:  # fmt: skip
    """columns: of the steps that take longer."""
    ranks = tuple(run.ranks[list(cause.rows)].tolist())
    each_ns = float(np.median(longer_ns)) * run.width
    share = float(longer_ns.sum()) / whole_ns
    first = int(run.steps[columns[0]])
    return Period(
        every * run.width, first, len(columns), ranks, cause.stage, each_ns, share, varies
    )


def _groups(
    causes: Sequence[_Cause | None], left: npt.NDArray[np.bool_], *, varies: bool
) -> dict[_Cause, list[int]]:
    """What long steps that are left have in common, and their numbers. varies: only the ranks."""
    found: dict[_Cause, list[int]] = {}
    for number, one in enumerate(causes):
        if one is not None and left[number]:
            found.setdefault(_Cause(one.rows, None) if varies else one, []).append(number)
    return found


def _large(longer_ns: Series) -> npt.NDArray[np.bool_]:
    found: npt.NDArray[np.bool_] = longer_ns >= LARGE * np.quantile(longer_ns, LARGEST)
    return found


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


def _every(places: Integers, begins_ns: Series, missed: int) -> int | None:
    """Steps from one to the next, where that is the same in steps or in time. missed: how many may
    be missing between two."""
    if len(places) < TIMES_MIN:
        return None
    every = float(np.median(np.diff(places)))
    regular = _is_regular(np.diff(places), 1.0, missed) or _is_regular(
        np.diff(begins_ns), 0.0, missed
    )
    return round(every) if every > 1 and regular else None


def _is_regular(distances: Series | Integers, least: float, missed: int) -> bool:
    every = float(np.median(distances))
    times = np.clip(np.round(distances / every), 1, 1 + missed)
    same = np.abs(distances - times * every) <= max(least, WITHIN * every)
    return bool(same.mean() >= REGULAR)
