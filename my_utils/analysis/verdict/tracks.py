"""Selects the rows of a rank's training thread, with one stage at each moment.

A thread of an attempt and a timer's tag together are a track: another process has other threads,
which may have the same numbers. Stages of one track nest, and the engine knows how. Those of two
timers do not: of the second one a stage counts only where it does not overlap the first.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ...core.run_files.state import COLLECTIVES_TAG
from .rank_files import Columns, RankStages, all_same, by_attempt, chosen

RUN_TAG = "run"  # of the timer of `my_utils run`
LEAST_STEPS = 0.5  # of the steps of the thread with most, that a thread must have
TAGS_MAX = 64  # the engine's MU_NAMES_MAX

Mask = npt.NDArray[np.bool_]


def training_rows(rank: RankStages) -> Mask:
    """The rows that count, of `rank.stages`.

    The training thread of an attempt is the one with the lowest number that has at least half as
    many steps as the thread with most; where `my_utils run` recorded, it is the thread of that
    timer. Rows of collectives count nowhere.
    """
    tags = rank.stages["tag"]
    is_stage = np.ones(len(tags), bool)
    if COLLECTIVES_TAG in rank.tags:
        is_stage = tags != rank.tags.index(COLLECTIVES_TAG)
    stages = chosen(rank.stages, is_stage)
    attempts = stages["attempt"]
    kept = np.zeros(len(attempts), bool)
    for attempt, rows in by_attempt(stages):
        kept[attempts == attempt] = _rows_of_attempt(rank, rows)
    is_stage[is_stage] = kept
    return is_stage


def _rows_of_attempt(rank: RankStages, stages: Columns) -> Mask:
    if all_same(stages["tid"]) and all_same(stages["tag"]):
        return np.ones(len(stages["tid"]), bool)
    is_run = stages["tag"] == (rank.tags.index(RUN_TAG) if RUN_TAG in rank.tags else -1)
    among = is_run if is_run.any() else np.ones(len(is_run), bool)
    on_thread = stages["tid"] == _thread(stages, among)
    own: Mask = on_thread & among
    tags = stages["tag"][own]
    if (own == on_thread).all() and tags.min() == tags.max():
        return own
    parents = np.array(rank.parents)
    outermost = parents[stages["path"]] == stages["path"]
    return _of_several_timers(stages, on_thread, own, outermost, is_run)


def _thread(stages: Columns, among: Mask) -> int:
    tids, steps = stages["tid"][among], stages["step"][among]
    if tids.min() == tids.max():
        return int(tids[0])
    known = np.unique(tids)
    counts = np.array([len(np.unique(steps[tids == tid])) for tid in known])
    return int(known[counts >= LEAST_STEPS * counts.max()].min())


def _of_several_timers(
    stages: Columns, on_thread: Mask, own: Mask, outermost: Mask, is_run: Mask
) -> Mask:
    """The rows of the timer that covers most, and those of the others that are next to it."""
    lengths = stages["end_ns"] - stages["begin_ns"]
    tags = stages["tag"].astype(np.int64)
    covered = np.bincount(
        tags[own & outermost], lengths[own & outermost].astype("f8"), minlength=TAGS_MAX
    )
    order = [int(tag) for tag in np.argsort(-covered, kind="stable") if covered[tag] > 0]
    if is_run.any():
        order = order[:1]
    others = [int(tag) for tag in np.unique(tags[on_thread]) if tag not in order]
    kept = np.zeros(len(tags), bool)
    for tag in [*order, *others]:
        mine = on_thread & (tags == tag)
        kept |= mine & _beside(stages, mine, mine & outermost, kept & outermost)
    return kept


def _beside(stages: Columns, mine: Mask, own_outer: Mask, taken: Mask) -> Mask:
    """Of the rows `mine`, those that are in no interval that is taken, with all around them."""
    begins, ends = stages["begin_ns"], stages["end_ns"]
    if not taken.any():
        return mine
    order = np.argsort(begins[taken])
    edges: tuple[Any, Any] = begins[taken][order], np.maximum.accumulate(ends[taken][order])
    outer = np.flatnonzero(own_outer)
    before = np.searchsorted(edges[0], ends[outer], side="left")
    free = (before == 0) | (edges[1][np.maximum(before - 1, 0)] <= begins[outer])
    result = np.zeros(len(begins), bool)
    # What is inside an outermost stage goes with it: it begins within it.
    places = np.argsort(begins[outer])
    sorted_begins = begins[outer][places]
    rows = np.flatnonzero(mine)
    around = np.searchsorted(sorted_begins, begins[rows], side="right") - 1
    result[rows] = (around >= 0) & free[places][np.maximum(around, 0)]
    return result
