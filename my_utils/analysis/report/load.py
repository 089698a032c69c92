"""Reads files into cells and metadata of ranks, here or on the machines of a cluster."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

import numpy as np

from ...core.extras import require
from ...core.files import atomic_write
from ...core.ranges import ranks_text
from ...core.run_files.state import WORLD_SIZE_MAX
from ...trace.inputs import FileSet
from ..verdict.evaluations import with_whole_evaluations
from ..verdict.rank_cells import RankCells, cells_of_rank
from ..verdict.rank_files import RankStages, last_run, read_rank
from ..verdict.readers import read_side_by_side
from ..verdict.run_data import Integers, RunData
from ..verdict.run_ranks import RANGES_NAMED, RunRanks, describe_problems, ranks_have

PURPOSE = "my_utils report"  # under which messages say that a package is missing
AS_READ = ("begin_ns", "end_ns", "tid", "cuda_ms", "attempt")  # columns of Parquet


def read_ranks(
    file_sets: Sequence[FileSet], steps: tuple[int, int], parquet: str | None
) -> Iterator[RankCells]:
    """The ranks in order, with what tables of these steps need. parquet: a folder for all rows."""

    def read(file_set: FileSet) -> RankCells:
        rank = read_rank(file_set)
        cells = cells_of_rank(with_whole_evaluations(rank), steps)
        if parquet is not None:
            _write_parquet(last_run(rank), parquet)
        return cells

    return read_side_by_side(file_sets, read)


def _write_parquet(rank: RankStages, folder: str) -> None:
    """Writes `folder`/rank=<rank>/data_0.parquet with the columns step, stage ("iter/forward"),
    begin_ns, end_ns, tid, cuda_ms and attempt; a file that was there is replaced. folder: a path,
    or a URI that pyarrow knows. Thread-safe."""
    arrow = require("pyarrow", f"{PURPOSE} --parquet")
    parquet = require("pyarrow.parquet", f"{PURPOSE} --parquet")
    stages = arrow.DictionaryArray.from_arrays(rank.stages["path"], rank.paths)
    columns = {"step": rank.stages["step"], "stage": stages.cast(arrow.string())}
    columns |= {name: rank.stages[name] for name in AS_READ}
    table = arrow.table(columns)
    target = f"{folder}/rank={rank.metadata.rank}"
    if "://" in folder:
        parquet.write_table(table, f"{target}/data_0.parquet")
        return
    os.makedirs(target, exist_ok=True)
    with atomic_write(f"{target}/data_0.parquet") as file:
        parquet.write_table(table, file)


def problems_of_report(run: RunData, ranks: RunRanks) -> Iterator[str]:
    """Those of a verdict, and ranks that ended early or have older runs in their files."""
    size = max((one.metadata.world_size for one in ranks.read), default=0)
    yield from describe_problems(ranks, range(min(size, WORLD_SIZE_MAX)))  # a larger one is damage
    if stopped := run.ranks[last_steps(run) < run.steps[-1]].tolist():
        end = run.steps[-1]
        yield f"{ranks_text(stopped, RANGES_NAMED)} ended before step {end}, the last of the run"
    if older := [one.metadata.rank for one in ranks.kept if one.metadata.older_runs]:
        yield f"{ranks_have(older)} older runs in the same files, which are left out"


def last_steps(run: RunData) -> Integers:
    """The last step of each rank."""
    places = np.arange(len(run.steps))
    steps: Integers = run.steps[np.where(np.isfinite(run.step_ns), places, 0).max(1)]
    return steps
