"""A rank's stages reduced to cells, what a stage took in one step, and to counts of durations.

Both can be joined with those of other ranks by appending, wherever they were made.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from .. import _core
from .ranks import Columns, RankFacts, RankStages

__all__ = ["ReducedRank", "reduce_rank"]

BUCKETS = _core.HISTOGRAM_BUCKETS

Numbers = npt.NDArray[np.int64]


@dataclass
class ReducedRank:
    """One rank; `path` of both tables is an index into `paths`.

    cells: step, path, count, total_ns, self_ns, begin_ns (of the first), last_begin_ns, end_ns (of
    the last). durations: path, bucket, count, max_ns, of single stages; a bucket is one of the
    engine's histograms.
    """

    facts: RankFacts
    paths: list[str]
    cells: Columns
    durations: Columns


def reduce_rank(rank: RankStages, steps: tuple[int, int]) -> ReducedRank:
    """steps: a half-open range. Thread-safe."""
    stages = _that_count(rank.stages, steps)
    parents = np.array([-1 if at == own else at for own, at in enumerate(rank.parents)], np.int64)
    return ReducedRank(rank.facts, rank.paths, _cells(stages, parents), _durations(stages))


def _that_count(stages: Columns, steps: tuple[int, int]) -> Columns:
    """Within the range, and of a step that was done again after a restart the last attempt."""
    step, attempt = stages["step"], stages["attempt"]
    kept = (step >= steps[0]) & (step < steps[1])
    if len(attempt) and attempt.min() != attempt.max():
        places = np.unique(step, return_inverse=True)[1]
        last = np.zeros(places.max() + 1, attempt.dtype)
        np.maximum.at(last, places, attempt)
        kept &= attempt == last[places]
    return stages if kept.all() else {name: column[kept] for name, column in stages.items()}


def _cells(stages: Columns, parents: Numbers) -> Columns:
    step, path = stages["step"], stages["path"].astype(np.int64)
    known, places = np.unique(step, return_inverse=True)
    order, firsts, counts, cells = _grouped(places * len(parents) + path)
    begins, ends = stages["begin_ns"][order], stages["end_ns"][order]
    totals = np.add.reduceat(ends - begins, firsts)
    return {
        "step": known[cells // len(parents)],
        "path": cells % len(parents),
        "count": counts,
        "total_ns": totals,
        "self_ns": np.maximum(totals - _inside(cells, totals, parents), 0),
        "begin_ns": np.minimum.reduceat(begins, firsts),
        "last_begin_ns": np.maximum.reduceat(begins, firsts),
        "end_ns": np.maximum.reduceat(ends, firsts),
    }


def _grouped(keys: Numbers) -> tuple[Numbers, Numbers, Numbers, Numbers]:
    """The order that brings equal keys together, then of each key the first place in that order,
    how often it occurs, and itself."""
    order = np.argsort(keys, kind="stable")
    keys = keys[order]
    firsts = np.flatnonzero(np.r_[True, keys[1:] != keys[:-1]][: len(keys)])
    return order, firsts, np.diff(firsts, append=len(keys)), keys[firsts]


def _inside(cells: Numbers, totals: Numbers, parents: Numbers) -> Numbers:
    """What the stages directly inside each cell took in the same step."""
    around = parents[cells % len(parents)]
    keys = cells - cells % len(parents) + around
    at = np.minimum(np.searchsorted(cells, keys), len(cells) - 1)
    there = (around >= 0) & (cells[at] == keys)
    inside = np.zeros(len(cells), np.int64)
    np.add.at(inside, at[there], totals[there])
    return inside


def _durations(stages: Columns) -> Columns:
    lengths = np.maximum(stages["end_ns"] - stages["begin_ns"], 1)
    buckets = np.frombuffer(_core.histogram_buckets(lengths), np.int64)
    order, firsts, counts, keys = _grouped(stages["path"].astype(np.int64) * BUCKETS + buckets)
    return {
        "path": keys // BUCKETS,
        "bucket": keys % BUCKETS,
        "count": counts,
        "max_ns": np.maximum.reduceat(lengths[order], firsts),
    }
