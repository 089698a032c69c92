"""The rows about the buckets of DDP, `my_utils.bucket` and `my_utils.ready`, as arrays."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from ..run_files.row_metadata import whole_number
from .rank_files import Note
from .ready_times import Bucket, ReadyTimes
from .run_data import NS_IN_US

__all__ = ["RankReady", "ready_of_rank", "ready_of_run"]

VALUES_MAX = 25_000_000  # ranks × steps × buckets, 200 MB; beyond it, steps spread evenly
STEPS_KEPT = 100  # at least, however many ranks there are
STAGE = "backward"

Integers = npt.NDArray[np.int64]
Row = tuple[int, int, str]  # attempt, step, times
RankReady = tuple[list[Bucket], list[Row]]


def ready_of_rank(notes: Sequence[Note]) -> RankReady:
    """What one rank wrote; the buckets of its last attempt."""
    buckets: dict[int, Bucket] = {}
    rows: list[Row] = []
    for note in notes:
        if note.name == "my_utils.bucket":
            number = whole_number(note.pairs.get("bucket"))
            size = whole_number(note.pairs.get("bytes"))
            if number is not None:
                kind = note.pairs.get("kind", "bucket")
                buckets[number] = Bucket(size or 0, note.pairs.get("modules", ""), kind)
        elif note.name == "my_utils.ready":
            step = whole_number(note.pairs.get("step"))
            if step is not None:
                rows.append((note.attempt, step, note.pairs.get("us", "")))
    is_complete = sorted(buckets) == list(range(len(buckets)))
    return ([buckets[number] for number in range(len(buckets))] if is_complete else []), rows


def ready_of_run(
    ranks: Sequence[RankReady],
    shifts: Mapping[int, int],
    numbers: Integers,
    begins: Iterable[Mapping[int, float]],
) -> ReadyTimes | None:
    """None where no step was looked at by two ranks.

    shifts: what is added to the steps of each attempt. numbers: the steps of the run's columns.
    begins: of each rank, by step, when the last backward began, ns since the begin of the run.
    """
    buckets = next((buckets for buckets, _ in ranks if buckets), [])
    texts = [
        {shifts.get(attempt, 0) + step: text for attempt, step, text in rows}
        if len(own) == len(buckets) else {}
        for own, rows in ranks
    ]  # fmt: skip
    steps, counts = np.unique([step for one in texts for step in one], return_counts=True)
    steps = steps[counts > 1].astype(np.int64)
    steps = steps[np.isin(steps, numbers)]
    if not buckets or not len(steps):
        return None
    steps_max = max(VALUES_MAX // (len(ranks) * len(buckets)), STEPS_KEPT)
    if len(steps) > steps_max:
        steps = steps[np.linspace(0, len(steps) - 1, steps_max).astype(np.int64)]
    found = ReadyTimes(
        np.searchsorted(numbers, steps),
        np.full((len(ranks), len(steps)), np.nan),
        np.full((len(ranks), len(steps), len(buckets)), np.nan),
        buckets,
        STAGE,
    )
    for row, (of_rank, of_begins) in enumerate(zip(texts, begins, strict=True)):
        for place, step in enumerate(steps.tolist()):
            if step in of_rank and step in of_begins:
                found.begins[row, place] = of_begins[step]
                found.ready[row, place] = _times(of_rank[step], len(buckets))
    return found


def _times(text: str, count: int) -> npt.NDArray[np.float64]:
    times = [whole_number(word) for word in text.split(";")]
    if len(times) != count:
        return np.full(count, np.nan)
    return np.array([np.nan if one is None else NS_IN_US * one for one in times])
