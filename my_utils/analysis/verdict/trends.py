"""Finds runs that become slower: at a step, or gradually.

The series is the step's time without the losses that were found before. It is "slower since" a step
if two levels describe it clearly better than a line, and no worse than a level from which a line
rises, and "throughput falls" otherwise. The cost is the mean over all judged steps of what they
take longer than the first level, or than the first eighth of the steps, or where a line describes
them best, than its begin. A stage is named if it has 80 % of the rise.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from .change_points import largest_rise
from .loss import LEAST_SHARE, Loss, Remaining
from .run_data import Matrix
from .work import Work

FALSE_CHANGES = 0.001
NAMED_SHARE = 0.8
EXPLAINED = 0.5  # of the rise, that what the parts rose in the median makes up
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
    whole = np.mean([work.step_times(left.own(), left.bases) for work, left in groups], axis=0)
    step_ns = float(np.mean([work.step_ns for work, _ in groups]))
    rise = _find_rise(whole)
    if rise is None or float(rise.above_ns.mean()) < LEAST_SHARE * step_ns:
        return None
    first, last = _ends(whole, rise)
    rises = _by_stage(groups, rise)
    stage, most = max(rises.items(), key=lambda one: one[1])
    total = sum(rises.values())
    is_explained = total > EXPLAINED * max(last - first, 0.0)  # else it moves among the parts
    share = most / total if is_explained else 0.0
    loss = Loss("throughput falls" if rise.is_gradual else "slower since", rise.above_ns)
    loss.since = rise.at or None
    loss.detail = {"before_ns": first, "after_ns": last, "stage_share": share}
    _take_off(groups, rise, rises if is_explained else _means(groups))
    return loss, stage if share >= NAMED_SHARE else None


def _find_rise(series: Series) -> _Rise | None:
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
    by_late_line = _off_a_late_line(calm, places)
    if by_levels > min(CLEARLY * by_line, by_late_line):
        begin = np.inf if by_late_line < CLEARLY * by_line else float(line[0])
        return _Rise(_above_the_begin(series, begin), 0, True)
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


def _above_the_begin(series: Series, begin: float) -> Series:
    """By how much the level of each sixteenth is above that of the first eighth, which has risen
    itself where the series rises from its begin on. begin: its level there, if that is known."""
    first = min(float(np.median(series[: max(len(series) // ENDS, 2)])), begin)
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


def _by_stage(groups: Sequence[Group], rise: _Rise) -> dict[str, float]:
    """How much each part and each meeting rose in the median from the beginning to the end, ns, 0.0
    where it did not."""
    found: dict[str, float] = {}
    for work, left in groups:
        parts = np.median(left.parts, axis=0)
        for name, series in zip(_names(work), [*parts.T, *left.bases.T], strict=True):
            first, last = _ends(series, rise)
            found[name] = found.get(name, 0.0) + last - first
    return {name: max(rose, 0.0) / len(groups) for name, rose in found.items()}


def _means(groups: Sequence[Group]) -> dict[str, float]:
    """What each part and each meeting takes in the mean, ns."""
    found: dict[str, float] = {}
    for work, left in groups:
        means = [*left.parts.mean((0, 1)), *left.bases.mean(0)]
        for name, mean in zip(_names(work), means, strict=True):
            found[name] = found.get(name, 0.0) + float(mean)
    return found


def _names(work: Work) -> list[str]:
    return [*work.parts, *work.meeting_names]


def _take_off(groups: Sequence[Group], rise: _Rise, weights: dict[str, float]) -> None:
    """Takes the rise off the parts and the meetings, in proportion to their weights."""
    total = sum(weights.values())
    for work, left in groups:
        for number, name in enumerate(work.parts):
            less: Matrix = left.parts[..., number] - weights[name] / total * rise.above_ns
            left.parts[..., number] = np.maximum(less, 0)
        for place, name in enumerate(work.meeting_names):
            rest = left.bases[:, place] - weights[name] / total * rise.above_ns
            left.bases[:, place] = np.maximum(rest, 0)
