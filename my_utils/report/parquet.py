"""All stages of a run as Parquet, partitioned by rank, for people's own queries."""

from __future__ import annotations

import os

import numpy as np

from ..common.tables import needed
from ..verdict.rank_files import RankStages
from .purpose import PURPOSE

__all__ = ["write_parquet"]


def write_parquet(rank: RankStages, folder: str) -> None:
    """Writes `folder`/rank=<rank>/….parquet with the columns step, stage ("iter/forward"),
    begin_ns, end_ns, tid, cuda_ms and attempt; a file of this rank that was there goes.
    Thread-safe."""
    duckdb = needed("duckdb", PURPOSE, "report")
    if "://" not in folder:
        os.makedirs(folder, exist_ok=True)
    names = np.array(rank.paths, dtype=object)
    numbers = np.arange(len(names), dtype="u4")
    with duckdb.connect() as connection:
        connection.register("stages", rank.stages)
        connection.register("paths", {"path": numbers, "stage": names})
        connection.execute(
            "COPY (SELECT step, stage, begin_ns, end_ns, tid, cuda_ms, attempt, $rank AS rank "
            "FROM stages JOIN paths USING (path)) TO $folder "
            "(FORMAT parquet, PARTITION_BY (rank), OVERWRITE_OR_IGNORE)",
            {"folder": folder, "rank": rank.metadata.rank},
        )
