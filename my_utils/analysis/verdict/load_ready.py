"""The rows about the buckets of DDP as arrays: `my_utils.bucket`, `my_utils.ready` and
`my_utils.ready_gpu`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from ...core.run_files.row_metadata import whole_number
from ...core.run_files.run_metadata import Note
from .ready_times import Bucket, ReadyTimes
from .run_data import NS_IN_US, Integers

VALUES_MAX = 25_000_000  # ranks × steps × buckets, 200 MB; beyond it, steps spread evenly
STEPS_KEPT = 100  # at least, however many ranks there are
STAGE = "backward"

GPU_SHARE = 0.5  # of the steps that must have the GPU's times, for these to count

Row = tuple[int, int, str]  # attempt, step, times


@dataclass
class RankReady:
    """What one rank wrote. buckets: those of its last attempt. gpu_rows: of those of `rows` whose
    times on the GPU are known, which begin with that of the begin. gpu_errors_us: of each."""

    buckets: list[Bucket] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)
    gpu_rows: list[Row] = field(default_factory=list)
    gpu_errors_us: list[int] = field(default_factory=list)


def ready_of_rank(notes: Sequence[Note]) -> RankReady:
    """What one rank wrote."""
    buckets: dict[int, Bucket] = {}
    found = RankReady()
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
                found.rows.append((note.attempt, step, note.pairs.get("us", "")))
        elif note.name == "my_utils.ready_gpu":
            step = whole_number(note.pairs.get("step"))
            error_us = whole_number(note.pairs.get("error_us"))
            if step is not None and error_us is not None:
                found.gpu_rows.append((note.attempt, step, note.pairs.get("us", "")))
                found.gpu_errors_us.append(error_us)
    if sorted(buckets) == list(range(len(buckets))):
        found.buckets = [buckets[number] for number in range(len(buckets))]
    return found


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
    buckets = next((one.buckets for one in ranks if one.buckets), [])
    texts = [
        _by_step(one.rows, shifts) if len(one.buckets) == len(buckets) else {} for one in ranks
    ]
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
    return _by_gpu(found, [_by_step(one.gpu_rows, shifts) for one in ranks], steps, ranks)


def _by_step(rows: Sequence[Row], shifts: Mapping[int, int]) -> dict[int, str]:
    return {shifts.get(attempt, 0) + step: text for attempt, step, text in rows}


def _by_gpu(
    host: ReadyTimes,
    texts: Sequence[Mapping[int, str]],
    steps: Integers,
    ranks: Sequence[RankReady],
) -> ReadyTimes:
    """The same by the clocks of the GPUs, where they say when in enough of the steps."""
    looked = np.isfinite(host.begins)
    moments = np.full((*host.begins.shape, host.ready.shape[2] + 1), np.nan)
    for row, place in np.argwhere(looked).tolist():
        text = texts[row].get(int(steps[place]))
        if text is not None:
            moments[row, place] = _times(text, moments.shape[2])
    begins = moments[..., 0]
    is_whole = (np.isfinite(begins) | ~looked).all(0)
    if not is_whole.sum() >= GPU_SHARE * len(steps):
        return host
    begins[:, ~is_whole] = np.nan
    errors_us = [error for one in ranks for error in one.gpu_errors_us]
    return replace(
        host,
        begins=host.begins + begins,
        ready=moments[..., 1:] - begins[..., None],
        gpu_error_ns=NS_IN_US * float(np.median(errors_us)),
    )


def _times(text: str, count: int) -> npt.NDArray[np.float64]:
    times = [whole_number(word) for word in text.split(";")]
    if len(times) != count:
        return np.full(count, np.nan)
    return np.array([np.nan if one is None else NS_IN_US * one for one in times])
