"""At which steps a run changes: all of it, or some of its ranks."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..verdict.run_data import Matrix
from ..verdict.work import Work, over_others
from .levels import (
    PART_MIN,
    Series,
    find_edges,
    fit_line,
    place_of_change,
    window_medians,
    window_width,
)

LEAST_SHARE = 0.05  # of a step, by which it or a rank's own work must change


@dataclass(frozen=True)
class Change:
    """at: the place of the step, among those that are judged, with which something changed. size:
    of the change, ns."""

    at: int
    size: float


@dataclass(frozen=True)
class Drift:
    """Steps that become longer, or shorter, little by little: from the place `first` to `last`,
    exclusive, by a line from `before_ns` to `after_ns`."""

    first: int
    last: int
    before_ns: float
    after_ns: float


def find_changes(works: Sequence[Work], whole: Series) -> tuple[list[Change], list[Drift]]:
    """Of all groups of a run. The changes in their order, none nearer to another than steps can be
    told apart; and where the run drifts. whole: what each step takes, as `step_times`."""
    least = LEAST_SHARE * max(work.step_ns for work in works)
    of_all = _apart(_changes(whole, least), len(whole))
    found, drifts = _without_drifts(whole, of_all, least)
    for work in works:
        found += _of_ranks(over_others(work.own.sum(2)), least) if len(work.rows) > 1 else []
    return _apart(found, len(whole)), drifts


def step_times(works: Sequence[Work]) -> Series:
    """Of each step what it takes, the mean of all groups."""
    times = [work.step_times(work.own.sum(2), work.bases()) for work in works]
    found: Series = np.mean(times, axis=0)
    return found


def _changes(series: Series, least: float, beside: int = 1) -> list[Change]:
    width = window_width(len(series))
    edges = find_edges(window_medians(series, width), least, beside)
    places = [place_of_change(series, edge * width, 2 * width) for edge in edges]
    bounds = [0, *places, len(series)]
    levels = [np.median(series[a:b]) if a < b else np.nan for a, b in itertools.pairwise(bounds)]
    return [
        Change(place, abs(float(after - before)))
        for place, before, after in zip(places, levels, levels[1:], strict=False)
        if np.isfinite(after - before)
    ]


def _of_ranks(excess: Matrix, least: float) -> list[Change]:
    """excess: rank × step, over the other ranks. Only ranks are looked at whose windows differ by
    enough."""
    windows = window_medians(excess, window_width(excess.shape[1]))
    low, high = np.quantile(windows, [0.01, 0.99], axis=1) if windows.shape[1] else np.zeros((2, 1))
    rows = np.flatnonzero(high - low >= least)
    return [change for row in rows for change in _changes(excess[row], least, len(excess))]


def _apart(changes: Sequence[Change], count: int) -> list[Change]:
    """Changes of several ranks at about the same step are one: the largest."""
    least = max(PART_MIN * window_width(count), count // 200)
    found: list[Change] = []
    for one in sorted(changes, key=lambda change: -change.size):
        is_inside = least <= one.at <= count - least
        if is_inside and all(abs(one.at - other.at) >= least for other in found):
            found.append(one)
    return sorted(found, key=lambda change: change.at)


def _without_drifts(
    series: Series, changes: Sequence[Change], least: float
) -> tuple[list[Change], list[Drift]]:
    """Levels that rise, or fall, one after the other are a drift where a line leaves less."""
    if not changes:
        line = fit_line(window_medians(series, window_width(len(series))), least)
        return [], [] if line is None else [Drift(0, len(series), *line)]
    bounds = [0, *(one.at for one in changes), len(series)]
    levels = [float(np.median(series[a:b])) for a, b in itertools.pairwise(bounds)]
    directions = [int(np.sign(b - a)) for a, b in itertools.pairwise(levels)]
    kept: list[Change] = []
    drifts: list[Drift] = []
    at = 0
    while at < len(changes):
        end = at + 1
        while end < len(changes) and directions[end] == directions[at]:
            end += 1
        span = slice(bounds[at], bounds[end + 1])
        line = _fit_line(series[span], levels[at : end + 1], bounds[at : end + 2], least)
        if line is None:
            kept += changes[at:end]
        else:
            drifts.append(Drift(span.start, span.stop, *line))
        at = end
    return kept, drifts


def _fit_line(
    part: Series, levels: Sequence[float], bounds: Sequence[int], least: float
) -> tuple[float, float] | None:
    """Both ends of the line, where it leaves less than the levels."""
    width = window_width(len(part))
    calm = window_medians(part, width)
    line = fit_line(calm, least)
    if line is None:
        return None
    fit = window_medians(np.repeat(levels, np.diff(bounds)), width)
    by_line = ((calm - np.linspace(*line, len(calm))) ** 2).sum()
    return line if by_line <= ((calm - fit) ** 2).sum() else None
