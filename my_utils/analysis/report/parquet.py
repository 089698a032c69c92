"""All stages of a run as Parquet, partitioned by rank, for people's own queries."""

from __future__ import annotations

import os

from ...core.extras import require
from ...core.files import atomic_write
from ..verdict.rank_files import RankStages
from .purpose import PURPOSE

AS_READ = ("begin_ns", "end_ns", "tid", "cuda_ms", "attempt")


def write_parquet(rank: RankStages, folder: str) -> None:
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
