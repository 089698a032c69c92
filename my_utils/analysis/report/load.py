"""Reads files into cells and metadata of ranks, here or on the machines of a cluster."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator, Sequence

from ...core.extras import require
from ...core.files import atomic_write
from ...trace.inputs import FileSet
from ..verdict.rank_cells import RankCells, cells_of_rank
from ..verdict.rank_files import RankMetadata, RankStages, last_run, read_rank
from ..verdict.readers import read_side_by_side
from ..verdict.run_ranks import RunRanks, left_out
from .grid import Grid

PURPOSE = "my_utils report"  # under which messages say that a package is missing
NAMED_AT_MOST = 20
AS_READ = ("begin_ns", "end_ns", "tid", "cuda_ms", "attempt")  # columns of Parquet


def read_ranks(
    file_sets: Sequence[FileSet], steps: tuple[int, int], parquet: str | None
) -> Iterator[RankCells]:
    """The ranks in order, with what tables of these steps need. parquet: a folder for all rows."""

    def read(file_set: FileSet) -> RankCells:
        rank = read_rank(file_set)
        cells = cells_of_rank(rank, steps)
        if parquet is not None:
            _write_parquet(rank if cells.is_automatic else last_run(rank), parquet)
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


def problems_of(grid: Grid, ranks: RunRanks, wanted: set[int] | None) -> list[str]:
    """Ranks without files, of an older run, cut short, with damaged rows or dropped records.
    wanted: the ranks that were asked for."""
    metadata = {one.metadata.rank: one.metadata for one in ranks.read}
    problems = [*_missing(metadata, wanted), *left_out(ranks, _named)]
    if stopped := grid.ranks[grid.last_steps() < grid.steps[-1:]].tolist():
        end = grid.steps[-1]
        problems.append(f"{_named(stopped)} ended before step {end}, the last of the run")
    for rank, one in sorted(metadata.items()):
        problems.extend(f"rank {rank}: {error}" for error in one.errors)
    for what, name in (
        ("rows that could not be understood", "bad_rows"),
        ("records that were lost during the run", "dropped"),
        ("a clock that was set during the run", "clock_steps"),
        ("older runs in the same files, which are left out", "older_runs"),
    ):
        if chosen := sorted(rank for rank, one in metadata.items() if getattr(one, name)):
            problems.append(f"{_named(chosen)} {_have(len(chosen))} {what}")
    return problems


def _missing(metadata: dict[int, RankMetadata], ranks: set[int] | None) -> list[str]:
    size = max((one.world_size for one in metadata.values()), default=0)
    wanted = range(size) if ranks is None else sorted(ranks)
    count = len(wanted) - sum(rank in wanted for rank in metadata)
    missing = (rank for rank in wanted if rank not in metadata)  # a damaged size may be any
    shown = list(itertools.islice(missing, NAMED_AT_MOST))
    return [f"{_named(shown, count)} {_have(count)} no files"] if shown else []


def _have(count: int) -> str:
    return "has" if count == 1 else "have"


def _named(ranks: Sequence[int], count: int | None = None) -> str:
    """count: the number of all ranks, if `ranks` has only the first of them."""
    count = len(ranks) if count is None else count
    shown = ", ".join(map(str, ranks[:NAMED_AT_MOST]))
    more = f" and {count - NAMED_AT_MOST} more" if count > NAMED_AT_MOST else ""
    return f"{'rank' if count == 1 else 'ranks'} {shown}{more}"
