"""Reduces a rank's stages to cells, the time of a stage in a step, and counts of durations.

Both can be joined with those of other ranks by appending, wherever they were made.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ... import _core
from .rank_files import Columns, all_same, chosen, first_step

BUCKETS = _core.HISTOGRAM_BUCKETS
SPAN_MAX = 4

Numbers = npt.NDArray[np.int64]


def that_count(stages: Columns) -> Columns:
    """Of a step that was done again after a restart the last attempt. What a restart did before its
    first step is in none."""
    step, attempt = stages["step"], stages["attempt"]
    if all_same(attempt):
        return stages
    kept = np.ones(len(step), bool)
    for later in np.unique(attempt)[1:]:
        rows = attempt == later
        kept &= ~rows | (step >= first_step(step[rows]))
    places = np.unique(step, return_inverse=True)[1]
    last = np.zeros(places.max() + 1, attempt.dtype)
    np.maximum.at(last, places[kept], attempt[kept])
    kept &= attempt == last[places]
    return chosen(stages, kept)


def sum_cells(stages: Columns, parents: Numbers) -> Columns:
    """Of each path and step the columns step, path, count, total_ns, self_ns, begin_ns (of the
    first), last_begin_ns and end_ns (of the last), in the order of steps, and of a step in that of
    paths. parents: of each path, -1 where it has none."""
    path = stages["path"].astype(np.int64)
    known, places = find_places(stages["step"])
    order, firsts, counts, cells = _grouped(places * len(parents) + path)
    begins, ends = stages["begin_ns"][order], stages["end_ns"][order]
    totals = np.add.reduceat(ends - begins, firsts)
    return {
        "step": known[cells // len(parents)],
        "path": (cells % len(parents)).astype(np.uint32),
        "count": counts,
        "total_ns": totals,
        "self_ns": np.maximum(totals - _inside(cells, totals, parents), 0),
        "begin_ns": np.minimum.reduceat(begins, firsts),
        "last_begin_ns": np.maximum.reduceat(begins, firsts),
        "end_ns": np.maximum.reduceat(ends, firsts),
    }


def find_places(steps: Numbers) -> tuple[Numbers, Numbers]:
    """Rising numbers that hold all of `steps`, and the place of each among them."""
    if len(steps):
        first, last = int(steps.min()), int(steps.max())
        if last - first < SPAN_MAX * len(steps):  # without gaps to speak of: nothing to search
            return np.arange(last - first + 1) + first, steps - first
    known, places = np.unique(steps, return_inverse=True)
    return known, places


def _grouped(keys: Numbers) -> tuple[Numbers, Numbers, Numbers, Numbers]:
    """The order that brings equal keys together, then of each key the first place in that order,
    how often it occurs, and itself."""
    order = np.argsort(keys, kind="stable")
    keys = keys[order]
    is_first = np.ones(len(keys), bool)
    np.not_equal(keys[1:], keys[:-1], out=is_first[1:])
    firsts = np.flatnonzero(is_first)
    counts = np.empty(len(firsts), np.int64)
    counts[:-1] = firsts[1:] - firsts[:-1]
    counts[-1:] = len(keys) - firsts[-1:]
    return order, firsts, counts, keys[firsts]


def _inside(cells: Numbers, totals: Numbers, parents: Numbers) -> Numbers:
    """What the stages directly inside each cell took in the same step."""
    around = parents[cells % len(parents)]
    inside = np.zeros(len(cells), np.int64)
    if around.max(initial=-1) < 0:
        return inside
    keys = cells - cells % len(parents) + around
    at = np.minimum(np.searchsorted(cells, keys), len(cells) - 1)
    there = (around >= 0) & (cells[at] == keys)
    np.add.at(inside, at[there], totals[there])
    return inside


def read_durations(path: Numbers, lengths: Numbers) -> Columns:
    """Of each path and bucket of the engine's histograms the columns path, bucket, count and
    max_ns, sorted. lengths: of single stages, ns."""
    lengths = np.maximum(lengths, 1)
    buckets = np.frombuffer(_core.histogram_buckets(lengths), np.int64)
    order, firsts, counts, keys = _grouped(path.astype(np.int64) * BUCKETS + buckets)
    return {
        "path": keys // BUCKETS,
        "bucket": keys % BUCKETS,
        "count": counts,
        "max_ns": np.maximum.reduceat(lengths[order], firsts),
    }
