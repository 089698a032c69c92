"""Finds runs that become slower: at a step, or gradually.

The series is the step's time without the losses that were found before. It is "slower since" a step
if two levels describe it clearly better than a line, and no worse than a level from which a line
rises, and "throughput falls" otherwise. The cost is the mean over all judged steps of what they
take longer than the first level, or than the first eighth of the steps. A stage is named if it has
80 % of the rise.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from .change_points import largest_rise
from .loss import LEAST_SHARE, Loss, Remaining
from .quantiles import median
from .run_data import Matrix
from .work import Work

FALSE_CHANGES = 0.001
NAMED_SHARE = 0.8
CLEARLY = 0.92  # of what the line leaves, that two levels may leave to be the better description
ENDS = 8  # that part of the series at each end shows whether it has risen at all

Series = npt.NDArray[np.float64]
Group = tuple[Work, Remaining]


@dataclass
class _Rise:
    """above_ns: per step, what it takes longer than at the beginning. at: its first place."""

    above_ns: Series
    at: int
    is_gradual: bool


def slower_over_time(groups: Sequence[Group]) -> tuple[Loss, str | None] | None:
    """The loss and the name of its stage. What it costs is taken off what is left of the groups."""
    whole = np.mean([_whole(work, left) for work, left in groups], axis=0)
    step_ns = float(np.mean([work.step_ns for work, _ in groups]))
    rise = _rise_of(whole)
    if rise is None or float(rise.above_ns.mean()) < LEAST_SHARE * step_ns:
        return None
    names, rises = _by_stage(groups, rise)
    total = float(np.maximum(rises, 0).sum())
    top = int(np.argmax(rises))
    stage = names[top] if rises[top] >= NAMED_SHARE * total else None
    first, last = _ends(whole, rise)
    loss = Loss("throughput falls" if rise.is_gradual else "slower since", rise.above_ns)
    loss.since = rise.at or None
    loss.detail = {"before_ns": first, "after_ns": last, "stage_share": float(rises[top] / total)}
    _take_off(groups, rise, dict(zip(names, rises, strict=True)))
    return loss, stage


def _whole(work: Work, left: Remaining) -> Series:
    own = left.own()
    longest = work.critical(own) if work.meets else median(own, 0)
    whole: Series = longest + left.bases.sum(1)
    return whole


def _rise_of(series: Series) -> _Rise | None:
    count = len(series)
    if count < 2 * ENDS:
        return None
    length = max(count // ENDS, 2)
    if float(np.median(series[-length:])) <= float(np.median(series[:length])):
        return None
    low, high = np.quantile(series, [0.02, 0.98])
    calm = np.clip(series, low, high)
    places = np.arange(count)
    line = np.polyval(np.polyfit(places, calm, 1), places)
    steps = _two_levels(series)
    if steps is None:
        return None
    levels, at = steps
    by_line, by_levels = (float(np.abs(calm - fit).sum()) for fit in (line, levels))
    if by_levels > min(CLEARLY * by_line, _off_a_late_line(calm, places)):
        return _Rise(_above_the_begin(series), 0, True)
    return _Rise(np.maximum(levels - levels[0], 0), at, False)


def _off_a_late_line(series: Series, places: npt.NDArray[np.int64]) -> float:
    """How far the series is from a level that a line leaves, at the best of some places."""
    count = len(series)
    off = []
    for at in range(count // ENDS, count - count // ENDS, max(count // (2 * ENDS), 1)):
        since = np.maximum(places - at, 0.0)
        slope, level = np.polyfit(since, series, 1)
        off.append(float(np.abs(series - level - slope * since).sum()))
    return min(off)


def _above_the_begin(series: Series) -> Series:
    """By how much the level of each sixteenth is above that of the first eighth."""
    first = float(np.median(series[: max(len(series) // ENDS, 2)]))
    levels = np.concatenate(
        [np.full(len(part), np.median(part)) for part in np.array_split(series, 2 * ENDS)]
    )
    above: Series = np.maximum(levels - first, 0)
    return above


def _two_levels(series: Series) -> tuple[Series, int] | None:
    """The series as two levels, parted at the largest change that rises."""
    at = largest_rise(series, FALSE_CHANGES)
    if at is None:
        return None
    levels = np.empty(len(series))
    levels[:at], levels[at:] = np.median(series[:at]), np.median(series[at:])
    return levels, at


def _ends(series: Series, rise: _Rise) -> tuple[float, float]:
    if rise.is_gradual:
        length = max(len(series) // ENDS, 2)
        return float(np.median(series[:length])), float(np.median(series[-length:]))
    return float(np.median(series[: rise.at])), float(np.median(series[rise.at :]))


def _by_stage(groups: Sequence[Group], rise: _Rise) -> tuple[list[str], Series]:
    """How much each part and each meeting rose from the beginning to the end, ns."""
    found: dict[str, float] = {}
    for work, left in groups:
        for number, name in enumerate(work.parts):
            first, last = _ends(np.median(left.parts[..., number], axis=0), rise)
            found[name] = found.get(name, 0.0) + last - first
        for place, base in enumerate(left.bases.T):
            first, last = _ends(base, rise)
            name = work.meeting_names[place]
            found[name] = found.get(name, 0.0) + last - first
    return list(found), np.array(list(found.values())) / len(groups)


def _take_off(groups: Sequence[Group], rise: _Rise, rises: dict[str, float]) -> None:
    """Takes the rise off the parts that rose, in proportion."""
    total = sum(max(value, 0.0) for value in rises.values())
    for work, left in groups:
        for number, name in enumerate(work.parts):
            share = max(rises.get(name, 0.0), 0.0) / total
            less: Matrix = left.parts[..., number] - share * rise.above_ns
            left.parts[..., number] = np.maximum(less, 0)
        for place, name in enumerate(work.meeting_names):
            share = max(rises.get(name, 0.0), 0.0) / total
            left.bases[:, place] = np.maximum(left.bases[:, place] - share * rise.above_ns, 0)
