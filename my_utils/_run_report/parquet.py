"""All stages of a run as Parquet, partitioned by rank, for people's own queries."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .._tables import needed
from .ranks import PURPOSE, RankStages

__all__ = ["append_parquet"]


def append_parquet(ranks: Sequence[RankStages], folder: str) -> None:
    """Writes `folder`/rank=<rank>/….parquet with the columns step, stage ("iter/forward"),
    begin_ns, end_ns, tid, cuda_ms and attempt; files of these ranks that were there go."""
    duckdb = needed("duckdb", PURPOSE, "report")
    with duckdb.connect() as connection:
        for rank in ranks:
            names = np.array(rank.paths, dtype=object)
            numbers = np.arange(len(names), dtype="u4")
            connection.register("stages", rank.stages)
            connection.register("paths", {"path": numbers, "stage": names})
            connection.execute(
                "COPY (SELECT step, stage, begin_ns, end_ns, tid, cuda_ms, attempt, $rank AS rank "
                "FROM stages JOIN paths USING (path)) TO $folder "
                "(FORMAT parquet, PARTITION_BY (rank), OVERWRITE_OR_IGNORE)",
                {"folder": folder, "rank": rank.facts.rank},
            )
