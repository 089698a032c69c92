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
    duckdb, pandas = needed("duckdb", PURPOSE, "report"), needed("pandas", PURPOSE, "report")
    for rank in ranks:
        stage = pandas.Categorical.from_codes(rank.stages["path"].astype("i4"), rank.paths)
        rows = rank.stages.drop(columns="path").assign(  # noqa: F841 - the query names it
            stage=stage, rank=np.int32(rank.facts.rank)
        )
        with duckdb.connect() as connection:
            connection.execute(
                "COPY (SELECT step, stage::VARCHAR AS stage, begin_ns, end_ns, tid, cuda_ms, "
                "attempt, rank FROM rows) TO $folder "
                "(FORMAT parquet, PARTITION_BY (rank), OVERWRITE_OR_IGNORE)",
                {"folder": folder},
            )
