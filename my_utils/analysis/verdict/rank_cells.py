"""The rows of one rank reduced to what the verdict needs of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from ...core.run_files.run_metadata import Note
from .device_cells import device_times, rows_with_gpu_times
from .rank_files import (
    Columns,
    RankMetadata,
    RankStages,
    all_same,
    by_attempt,
    chosen,
    last_run,
    place_of,
)
from .recorded_rank import RecordedRank, recorded_rank
from .reduce import find_places, read_durations, sum_cells, that_count
from .run_data import (
    GPU_COUNTERS,
    HOST_COUNTERS,
    HOST_STATES,
    LOADER_COUNTERS,
    LOADER_DELAY,
    LOADER_READ,
    Integers,
    Matrix,
)
from .tracks import training_rows

EVER = (-(2**63), 2**63)
COUNTERS = {
    "memory.rss_bytes": "rss_bytes",
    "memory.allocated_bytes": "allocated_bytes",
    "batch.samples": "samples",
    "batch.tokens": "tokens",
    "samples": "samples",
    "tokens": "tokens",
    **{f"host.{name}": name for name in (*HOST_COUNTERS, *HOST_STATES)},
    **{
        name.replace("_", ".", 1): name
        for name in (*LOADER_COUNTERS, LOADER_DELAY, LOADER_READ, *GPU_COUNTERS)
    },
}
OF_TABLES = ("count", "total_ns")  # of the columns of cells
ATTEMPT = 1 << 40  # steps of attempts are keyed as attempt × ATTEMPT + step until all are known


class Attempt(NamedTuple):
    """What a process of a rank recorded: its first and last step, and from when to when."""

    first: int
    last: int
    begin_ns: int
    end_ns: int


@dataclass
class RankCounters:
    """names: of `COUNTERS`, only those that were recorded. steps: rising. values: name × step, NaN
    where missing."""

    names: list[str]
    steps: Integers
    values: Matrix


@dataclass
class RankCells:
    """A rank reduced. cells: of its training thread, as `sum_cells` has them, and, of a rank with
    GPU times alone, gpu_begin_ns and gpu_end_ns (since the begin of the rank), gpu_ns and
    gpu_error_ns, NaN without; device_ns and launch_ns, see `device_cells`. attempts: by number.
    Where `my_utils run` recorded, steps are numbered within an attempt until all ranks are known;
    shifts has what was added to those of each attempt then. begins_anew: the steps that are the
    first of an attempt, but for the first. repeated: the first and the last of the steps of which
    an older copy is left out. recorded: for a replay, None where nothing was recorded for one.

    For tables alone: others, the cells of other threads; durations, of single stages of all
    threads, as `read_durations` has them."""

    metadata: RankMetadata
    paths: list[str]
    parents: list[int]
    cells: Columns
    counters: RankCounters
    notes: list[Note]
    is_automatic: bool
    attempts: dict[int, Attempt] = field(default_factory=dict)
    begins_anew: Integers = field(default_factory=lambda: np.zeros(0, np.int64))
    repeated: tuple[int, int] | None = None
    shifts: dict[int, int] = field(default_factory=dict)
    recorded: RecordedRank | None = None
    others: Columns = field(default_factory=dict)
    durations: Columns = field(default_factory=dict)

    @property
    def run_id(self) -> str:
        """That of the last process that said one; empty where `my_utils run` did not record."""
        ids = (note.pairs.get("run_id") for note in self.notes if note.name == "my_utils.run")
        return next((one for one in reversed(list(ids)) if one), "")


def cells_of_rank(rank: RankStages, tables_of: tuple[int, int] | None = None) -> RankCells:
    """What is needed of a rank. Thread-safe.

    tables_of: a half-open range of steps; then what tables need is there, too, with the durations
    of these steps. A verdict needs it not.
    """
    is_automatic = rank.is_automatic
    rank = last_run(rank)
    is_training = training_rows(rank)
    all_copies = chosen(rank.stages, is_training)
    stages = _that_count(is_automatic, all_copies)
    counters = _of_iterations(rank.counters) if is_automatic else rank.counters
    keyed = {**stages, "step": _keyed(is_automatic, stages)}
    cells = sum_cells(keyed, rank.around)
    found = RankCells(
        rank.metadata, rank.paths, rank.parents,
        cells | _gpu_cells(keyed, cells, rank),
        _counters({**counters, "step": _keyed(is_automatic, counters)}, rank.counter_names),
        rank.notes, is_automatic, _attempts(stages), _begins_anew(keyed),
        None if is_automatic else _done_again(all_copies, stages),
    )  # fmt: skip
    found.recorded = recorded_rank(rank)
    if tables_of is not None:
        others = _that_count(is_automatic, chosen(rank.stages, ~is_training))
        found.durations = _durations((stages, others), tables_of)
        if len(others["step"]):
            keyed = {**others, "step": _keyed(is_automatic, others)}
            found.others = sum_cells(keyed, rank.around)
    return found


def for_the_verdict(rank: RankCells) -> RankCells:
    """Lets go of what tables alone need. Returns the same rank."""
    rank.cells = {name: one for name, one in rank.cells.items() if name not in OF_TABLES}
    rank.others, rank.durations = {}, {}
    return rank


def peers_of(rank: RankCells) -> int:
    """The number of its pipeline stage: only ranks with the same one are compared."""
    for note in rank.notes:
        said = note.pairs.get("pipeline_stage", "") if note.name == "my_utils.run" else ""
        place = place_of(said)
        if place is not None:
            return place
    return rank.metadata.groups.get("pp", 0)


def _that_count(is_automatic: bool, stages: Columns) -> Columns:
    return _of_iterations(stages) if is_automatic else that_count(stages)


def _durations(parts: Sequence[Columns], steps: tuple[int, int]) -> Columns:
    kept = [chosen(part, (part["step"] >= steps[0]) & (part["step"] < steps[1])) for part in parts]
    return read_durations(
        np.concatenate([part["path"] for part in kept]),
        np.concatenate([part["end_ns"] - part["begin_ns"] for part in kept]),
    )


def _of_iterations(columns: Columns) -> Columns:
    """Without what came after the last iteration, which `my_utils run` gives the step -1, and
    without numbers that no run reaches."""
    steps = columns["step"]
    return chosen(columns, (steps >= 0) & (steps < ATTEMPT // 2))


# --- steps of several attempts ---


def _attempts(stages: Columns) -> dict[int, Attempt]:
    return {
        attempt: Attempt(
            int(rows["step"].min()), int(rows["step"].max()),
            int(rows["begin_ns"].min()), int(rows["end_ns"].max()),
        )
        for attempt, rows in by_attempt(stages)
    }  # fmt: skip


def _done_again(all_copies: Columns, stages: Columns) -> tuple[int, int] | None:
    """The steps of which the last attempt's copy counts, and an older one is left out."""
    if len(all_copies["step"]) == len(stages["step"]):
        return None
    known, places = np.unique(stages["step"], return_inverse=True)
    last = np.zeros(len(known), stages["attempt"].dtype)
    last[places] = stages["attempt"]
    at = np.minimum(np.searchsorted(known, all_copies["step"]), len(known) - 1)
    again = (known[at] == all_copies["step"]) & (all_copies["attempt"] < last[at])
    steps = all_copies["step"][again]
    return (int(steps.min()), int(steps.max())) if len(steps) else None


def _begins_anew(stages: Columns) -> Integers:
    if all_same(stages["attempt"]):
        return np.zeros(0, np.int64)
    known, places = np.unique(stages["step"], return_inverse=True)
    attempts = np.zeros(len(known), stages["attempt"].dtype)
    attempts[places] = stages["attempt"]
    steps: Integers = known[1:][attempts[1:] != attempts[:-1]]
    return steps


def _keyed(is_automatic: bool, columns: Columns) -> Integers:
    steps, attempts = columns["step"], columns["attempt"]
    if not is_automatic or not len(steps):
        return steps
    if all_same(attempts):
        return steps + int(attempts[0]) * ATTEMPT
    keys: Integers = steps + attempts.astype(np.int64) * ATTEMPT
    return keys


def numbered(keys: Integers, shifts: dict[int, int]) -> Integers:
    """The steps of the run. keys: of an attempt and its own steps. shifts: as in `RankCells`."""
    if not len(keys):
        return keys
    first, last = ((int(key) + ATTEMPT // 2) // ATTEMPT for key in (keys.min(), keys.max()))
    if first == last:
        return keys + (shifts.get(first, 0) - first * ATTEMPT)
    attempts = (keys + ATTEMPT // 2) // ATTEMPT
    steps = keys - attempts * ATTEMPT
    for attempt, shift in shifts.items():
        steps[attempts == attempt] += shift
    return steps


# --- GPU times and counters ---


def _gpu_cells(stages: Columns, cells: Columns, rank: RankStages) -> Columns:
    """Of each cell its GPU times, moments since the rank's begin; NaN where it has none. Unix time
    in ns would not fit into a float64. And what it takes the device, see `device_cells`. No columns
    where no row has GPU times."""
    paths, origin_ns = len(rank.paths), rank.metadata.begin_ns
    timed = rows_with_gpu_times(stages, origin_ns)
    if not timed.any():
        return {}
    columns = {
        name: np.full(len(cells["step"]), np.nan)
        for name in ("gpu_begin_ns", "gpu_end_ns", "gpu_ns", "gpu_error_ns")
    }
    known, places = find_places(stages["step"])
    keys = places * paths + stages["path"].astype(np.int64)
    cell_keys = np.searchsorted(known, cells["step"]) * paths + cells["path"]
    cell = np.searchsorted(cell_keys, keys)
    taken = device_times(stages, timed, rank.paths, rank.around, origin_ns)
    for name, ns in zip(("device_ns", "launch_ns"), taken, strict=True):
        columns[name] = np.bincount(cell, ns, minlength=len(cell_keys))
    at = cell[timed]
    begins = stages["cuda_begin_ns"][timed] - origin_ns
    took = stages["cuda_ms"][timed] * 1e6
    for name, start in (("gpu_begin_ns", np.inf), ("gpu_end_ns", -np.inf), ("gpu_ns", 0.0)):
        columns[name][at] = start
    columns["gpu_error_ns"][at] = 0.0
    np.minimum.at(columns["gpu_begin_ns"], at, begins.astype("f8"))
    np.maximum.at(columns["gpu_end_ns"], at, begins + took)
    np.add.at(columns["gpu_ns"], at, took)
    np.maximum.at(columns["gpu_error_ns"], at, np.maximum(stages["cuda_error_ns"][timed], 0))
    return columns


def _counters(counters: Columns, names: Sequence[str]) -> RankCounters:
    """names: of each number in the column `name`."""
    wanted: dict[str, int] = {}  # of the names in the files, those that count, and their numbers
    for number, name in enumerate(names):
        if name in COUNTERS:
            wanted.setdefault(COUNTERS[name], number)
    rows_of = np.full(len(names), -1)
    rows_of[list(wanted.values())] = np.arange(len(wanted))
    row = rows_of[counters["name"]]
    if (row < 0).any():
        counters = chosen(counters, row >= 0)
        row = row[row >= 0]
    known, places = find_places(counters["step"])
    values = np.full((len(wanted), len(known)), np.nan)
    values[row, places] = counters["value"]
    return RankCounters(list(wanted), known, values)
