"""What each stage takes, over all ranks and for each of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from .. import _core
from .cells import Cells
from .grid import Grid
from .waits import Segments

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["stage_table", "stages_by_rank"]

# Percentiles are buckets here.
_STAGES = """
WITH buckets AS (
    SELECT path, bucket, sum(count) AS count, max(max_ns) AS max_ns
    FROM durations GROUP BY path, bucket),
running AS (
    SELECT *, sum(count) OVER (PARTITION BY path ORDER BY bucket) AS below,
           sum(count) OVER (PARTITION BY path) AS all_of_it
    FROM buckets),
percentiles AS (
    SELECT path, any_value(all_of_it)::BIGINT AS count, max(max_ns) AS max_ns,
           min(bucket) FILTER (below >= 0.5 * all_of_it) AS p50,
           min(bucket) FILTER (below >= 0.99 * all_of_it) AS p99
    FROM running GROUP BY path),
totals AS (
    SELECT path, sum(total_ns) AS total_ns, sum(self_ns) AS self_ns,
           stddev_samp(total_ns) AS step_std_ns, avg(total_ns) AS step_mean_ns
    FROM cells GROUP BY path),
ranks AS (
    SELECT path, rank, sum(total_ns) AS total_ns FROM cells GROUP BY path, rank),
imbalance AS (
    SELECT path, max(total_ns) / avg(total_ns) - 1 AS imbalance,
           arg_max(rank, (total_ns, -rank)) AS slowest_rank
    FROM ranks GROUP BY path)
SELECT path, name AS stage, count, total_ns * 1e-9 AS total_s, self_ns * 1e-9 AS self_s,
       total_ns / count * 1e-6 AS mean_ms,
       p50 AS p50_ms, p99 AS p99_ms,
       max_ns * 1e-6 AS max_ms, step_mean_ns * 1e-6 AS step_mean_ms,
       step_std_ns * 1e-6 AS step_std_ms, imbalance, slowest_rank
FROM percentiles JOIN totals USING (path) JOIN imbalance USING (path) JOIN paths USING (path)
ORDER BY name;
"""


def stage_table(cells: Cells, grid: Grid, segments: Segments) -> pd.DataFrame:
    """A row a stage.

    stage; count of single runs; total_s and self_s (without the stages inside) of all ranks; mean,
    p50, p99 and max of a single run in ms; step_mean_ms and step_std_ms of what it takes a rank in
    a step; imbalance: how much longer than the mean of the ranks the slowest_rank took, a fraction;
    critical_s and critical_share: of it on the critical path of the steps, without the warm-up;
    synchronises: ranks wait in it.
    """
    table = cells.query(_STAGES)
    middles = np.frombuffer(_core.histogram_middles()) * 1e-6
    for share in ("p50_ms", "p99_ms"):  # within 0.8 %, and never above the maximum
        table[share] = np.minimum(middles[table[share]], table["max_ms"])
    critical: Any = np.array([segments.critical_ns.get(path, 0.0) for path in table["path"]])
    table["critical_s"] = critical * 1e-9
    table["critical_share"] = critical / (critical.sum() or 1.0)
    table["synchronises"] = table["path"].isin(segments.sync)
    return table.drop(columns="path")


def stages_by_rank(cells: Cells) -> pd.DataFrame:
    """rank, stage, count, total_s, self_s and mean_ms of a single run; sorted."""
    return cells.query(
        "SELECT rank, name AS stage, count::BIGINT AS count, total_ns * 1e-9 AS total_s, "
        "self_ns * 1e-9 AS self_s, total_ns / count * 1e-6 AS mean_ms "
        "FROM (SELECT rank, path, sum(count) AS count, sum(total_ns) AS total_ns, "
        "sum(self_ns) AS self_ns FROM cells GROUP BY rank, path) "
        "JOIN paths USING (path) ORDER BY rank, name"
    )
