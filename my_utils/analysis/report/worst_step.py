"""The step that cost most, span by span, of the rank that is named and of some others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..verdict.device_cells import of_the_device, rows_with_gpu_times
from ..verdict.rank_files import Columns, RankStages, depths_of

SPANS_MAX = 2_000  # of a rank; the longest of more


@dataclass(frozen=True)
class RankSpans:
    """spans: a row each: path (an index into `stages` of the step), depth, begin_ms, length_ms.
    on_gpu: they are the stages as the GPU ran them."""

    rank: int
    spans: Sequence[tuple[int, int, float, float]]
    on_gpu: bool = False

    @property
    def name(self) -> str:
        return f"rank {self.rank}, GPU" if self.on_gpu else f"rank {self.rank}"


@dataclass(frozen=True)
class WorstStep:
    """Times count from the first begin of the step on any of the ranks, each by its own clock.
    stages: their paths."""

    step: int
    stages: Sequence[str]
    ranks: Sequence[RankSpans]

    @property
    def names(self) -> list[str]:
        """Of the stages, as they are on their spans."""
        return [stage.rpartition("/")[2] for stage in self.stages]

    @property
    def title(self) -> str:
        return f"Step {self.step}, the most costly one, span by span"

    def as_data(self) -> dict[str, Any]:
        """For the page's script."""
        ends = (begin + length for one in self.ranks for _, _, begin, length in one.spans)
        return {
            "stages": self.names,
            "ranks": [{"name": one.name, "spans": list(one.spans)} for one in self.ranks],
            "length_ms": max(ends, default=1.0),
        }


def find_worst_step(ranks: Sequence[RankStages], step: int) -> WorstStep:
    """ranks: as they were read, the one that is named first."""
    names: dict[str, int] = {}
    cut = [_of_step(one, step) for one in ranks]
    begins = [int(one["begin_ns"].min()) for one in cut if len(one["begin_ns"])]
    origin = min(begins, default=0)
    rows = []
    for rank, columns in zip(ranks, cut, strict=True):
        for name in rank.paths:
            names.setdefault(name, len(names))
        number = rank.metadata.rank
        rows.append(RankSpans(number, _spans(rank, columns, names, origin)))
        gpu = _on_gpu(rank, columns)
        if len(gpu["path"]):
            rows.append(RankSpans(number, _spans(rank, gpu, names, origin), on_gpu=True))
    return WorstStep(step, list(names), rows)


def _spans(
    rank: RankStages, columns: Columns, names: Mapping[str, int], origin: int
) -> list[tuple[int, int, float, float]]:
    depths = depths_of(rank.around).tolist()
    order = np.argsort(columns["begin_ns"] - columns["end_ns"], kind="stable")[:SPANS_MAX]
    rows = zip(
        columns["path"][order].tolist(),
        columns["begin_ns"][order].tolist(),
        columns["end_ns"][order].tolist(),
        strict=True,
    )
    spans = [
        (
            names[rank.paths[path]],
            depths[path],
            round((begin - origin) * 1e-6, 6),
            round((end - begin) * 1e-6, 6),
        )
        for path, begin, end in rows
    ]
    return sorted(spans, key=lambda span: span[2:0:-1])


def _on_gpu(rank: RankStages, columns: Columns) -> Columns:
    """The stages with GPU times, as the GPU ran them; input and checkpoints are the host's."""
    timed = rows_with_gpu_times(columns, rank.metadata.begin_ns)
    timed &= of_the_device(rank.paths)[columns["path"]]
    begins = columns["cuda_begin_ns"][timed]
    took = np.round(columns["cuda_ms"][timed] * 1e6).astype(np.int64)
    return {"path": columns["path"][timed], "begin_ns": begins, "end_ns": begins + took}


def _of_step(rank: RankStages, step: int) -> Columns:
    """The rows of the thread that has most of the step."""
    chosen = rank.stages["step"] == step
    columns = {name: column[chosen] for name, column in rank.stages.items()}
    if not len(columns["tid"]):
        return columns
    took = columns["end_ns"] - columns["begin_ns"]
    threads, places = np.unique(columns["tid"], return_inverse=True)
    busiest = threads[np.bincount(places, weights=took).argmax()]
    own = columns["tid"] == busiest
    return {name: column[own] for name, column in columns.items()}
