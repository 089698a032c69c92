"""What each stage takes, over all ranks and for each of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ... import _core
from ...core.extras import require
from .cells import Cells, Integers, RankOfCells
from .grid import Grid
from .purpose import PURPOSE
from .waits import Segments

if TYPE_CHECKING:
    import pandas as pd


def stage_table(cells: Cells, grid: Grid, segments: Segments) -> pd.DataFrame:
    """A row a stage.

    stage; count of single runs; total_s and self_s (without the stages inside) of all ranks; mean,
    p50, p99 and max of a single run in ms; step_mean_ms and step_std_ms of what it takes a rank in
    a step; imbalance: how much longer than the mean of the ranks the slowest_rank took, a fraction;
    critical_s and critical_share: of it on the critical path of the steps, without the warm-up;
    synchronises: ranks wait in it.
    """
    pandas = require("pandas", PURPOSE)
    durations = cells.durations()
    table = pandas.DataFrame([_figures(grid, path, *durations[path]) for path in grid.paths])
    critical: Any = np.array([segments.critical_ns.get(path, 0.0) for path in grid.paths])
    table["critical_s"] = critical * 1e-9
    table["critical_share"] = critical / (critical.sum() or 1.0)
    table["synchronises"] = [path in segments.sync for path in grid.paths]
    return table


def _figures(grid: Grid, path: int, counts: Integers, longest_ns: int) -> dict[str, Any]:
    """The columns of a stage that need no other stage. counts: of each bucket."""
    total_ns, self_ns = grid.of(path, "total_ns", "self_ns")
    known = total_ns[np.isfinite(total_ns)]
    ranks = np.flatnonzero(np.isfinite(total_ns).any(1))
    of_ranks = np.nansum(total_ns[ranks], 1)
    count = int(counts.sum())
    longest_ms = longest_ns * 1e-6
    return {
        "stage": grid.paths[path],
        "count": count,
        "total_s": known.sum() * 1e-9,
        "self_s": np.nansum(self_ns) * 1e-9,
        "mean_ms": known.sum() / count * 1e-6,
        "p50_ms": min(_percentile_ms(counts, 0.5), longest_ms),
        "p99_ms": min(_percentile_ms(counts, 0.99), longest_ms),
        "max_ms": longest_ms,
        "step_mean_ms": known.mean() * 1e-6,
        "step_std_ms": known.std(ddof=1) * 1e-6 if len(known) > 1 else np.nan,
        "imbalance": of_ranks.max() / of_ranks.mean() - 1 if of_ranks.any() else np.nan,
        "slowest_rank": int(grid.ranks[ranks[of_ranks.argmax()]]),
    }


def _percentile_ms(counts: Integers, share: float) -> float:
    """The middle of a bucket, which is within 0.8 %."""
    running = np.cumsum(counts)
    middles = np.frombuffer(_core.histogram_middles())
    return float(middles[np.searchsorted(running, share * running[-1])]) * 1e-6


def stages_by_rank(cells: Cells) -> pd.DataFrame:
    """rank, stage, count, total_s, self_s and mean_ms of a single run; sorted."""
    pandas = require("pandas", PURPOSE)
    names = cells.names()
    ranks = list(cells.of_ranks.values())
    runs, total_ns, self_ns = (
        np.concatenate([sums(one) for one in ranks])
        for sums in (
            RankOfCells.runs,
            lambda one: one.sums("total_ns"),
            lambda one: one.sums("self_ns"),
        )
    )
    table: pd.DataFrame = pandas.DataFrame(
        {
            "rank": np.repeat([one.rank for one in ranks], [len(one.paths) for one in ranks]),
            "stage": [names[path] for one in ranks for path in one.paths],
            "count": runs,
            "total_s": total_ns * 1e-9,
            "self_s": self_ns * 1e-9,
            "mean_ms": total_ns / runs * 1e-6,
        }
    )
    return table.sort_values(["rank", "stage"], ignore_index=True)
