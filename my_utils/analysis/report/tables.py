"""The tables of the report: steps, waits, ranks, hosts and parallel groups."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ... import _core
from ...core.extras import require
from ..verdict.quantiles import median, quantile_of
from ..verdict.rank_files import GROUPS, RankMetadata
from ..verdict.run_data import Integers, Matrix
from .cells import Cells, RankOfCells
from .grid import Grid
from .load import PURPOSE
from .waits import NOBODY, Segments

if TYPE_CHECKING:
    import pandas as pd


def wait_table(grid: Grid, segments: Segments) -> pd.DataFrame:
    """A row a step and synchronising stage at which ranks waited."""
    pandas = require("pandas", PURPOSE)
    count = len(segments.sync)
    rows, places = np.nonzero(segments.rank[:count].T != NOBODY)[::-1]
    at = (rows, places)
    paths = segments.lost_path[at]
    table: pd.DataFrame = pandas.DataFrame(
        {
            "step": grid.steps[places],
            "sync": [grid.paths[segments.sync[row]] for row in rows],
            "rank": grid.ranks[segments.rank[at]],
            "late_ms": segments.late_ns[at] * 1e-6,
            "cost_s": segments.cost_ns[at] * 1e-9,
            "stage": [grid.paths.get(int(path)) for path in paths],
            "lost_ms": segments.lost_ns[at] * 1e-6,
        }
    )
    return table


def step_table(grid: Grid, sync: list[int], waits: pd.DataFrame) -> pd.DataFrame:
    """A row a step: how long it took the ranks, and whom they waited for longest."""
    pandas = require("pandas", PURPOSE)
    took, busy = grid.step_ns() * 1e-6, grid.busy_ns(sync) * 1e-6
    known = np.where(np.isfinite(busy), busy, -np.inf)
    table = pandas.DataFrame(
        {
            "step": grid.steps,
            "median_ms": median(took, 0),
            "busy_ms": median(busy, 0),
            "busy_low_ms": quantile_of(busy, 0.1, 0),
            "busy_high_ms": quantile_of(busy, 0.9, 0),
            "busy_max_ms": known.max(0),
            "busiest_rank": grid.ranks[known.argmax(0)],
        }
    )
    if waits.empty:
        return table
    longest = waits.loc[waits.groupby("step")["cost_s"].idxmax()]
    longest = longest[["step", "rank", "stage", "lost_ms"]]
    costs = waits.groupby("step", as_index=False)["cost_s"].sum()
    merged: pd.DataFrame = table.merge(longest, "left", "step").merge(costs, "left", "step")
    return merged.astype({"rank": "Int64"})


def rank_table(
    grid: Grid, segments: Segments, offsets: Matrix, metadata: dict[int, RankMetadata]
) -> pd.DataFrame:
    """A row a rank: its host and groups, its step time, its waits, and the others' waits for it."""
    pandas = require("pandas", PURPOSE)
    waited, cost = _waits_of_ranks(grid, segments, offsets)
    known = [metadata[rank] for rank in grid.ranks.tolist()]
    places = [one.groups for one in known]
    columns: dict[str, Any] = {"rank": grid.ranks, "host": [one.host for one in known]}
    for name in sorted(set().union(*places)):
        columns[name] = pandas.array([of_rank.get(name) for of_rank in places], "Int64")
    columns |= {
        "step_ms": median(grid.step_ns()[:, grid.warmup :], 1) * 1e-6,
        "waited_s": waited * 1e-9,
        "cost_s": cost * 1e-9,
        "last_step": grid.last_steps(),
    }
    for name in ("rows", "bad_rows", "dropped", "open", "attempts"):
        columns[name] = [getattr(one, name) for one in known]
    errors = [np.nan if one.clock_error_s is None else one.clock_error_s for one in known]
    columns["clock_error_s"] = errors
    table: pd.DataFrame = pandas.DataFrame(columns)
    return table


def _waits_of_ranks(grid: Grid, segments: Segments, offsets: Matrix) -> tuple[Matrix, Matrix]:
    """What each rank waited for others, and others for it, in ns."""
    waited, cost = np.zeros(len(grid.ranks)), np.zeros(len(grid.ranks))
    for row, path in enumerate(segments.sync):
        (begins,) = grid.of(path, "last_begin_ns")
        waited += np.nansum(segments.end_ns[row] - (begins - offsets), axis=1)
        at = segments.rank[row] != NOBODY
        np.add.at(cost, segments.rank[row][at], segments.cost_ns[row][at])
    return waited, cost


def host_table(ranks: pd.DataFrame, stragglers: list[int]) -> pd.DataFrame:
    """host, its ranks, how many of them are stragglers, step_ms, waited_s and cost_s.

    Without groups of pandas, which take longer than all else of this for a few hundred ranks.
    """
    pandas = require("pandas", PURPOSE)
    members: dict[Any, list[int]] = {}
    for place, host in enumerate(ranks["host"]):
        members.setdefault(host, []).append(place)
    together = [members[host] for host in sorted(members)]
    slow = np.isin(ranks["rank"], stragglers)
    step_ms, waited_s, cost_s = (
        ranks[name].to_numpy() for name in ("step_ms", "waited_s", "cost_s")
    )
    table: pd.DataFrame = pandas.DataFrame(
        {
            "host": ranks["host"].iloc[[places[0] for places in together]].array,
            "ranks": np.array([len(places) for places in together], "i8"),
            "stragglers": np.array([slow[places].sum() for places in together], "i8"),
            "step_ms": np.array([median(step_ms[places]) for places in together], "f8"),
            "waited_s": np.array([np.nansum(waited_s[places]) for places in together], "f8"),
            "cost_s": np.array([np.nansum(cost_s[places]) for places in together], "f8"),
        }
    )
    return table


def group_table(ranks: pd.DataFrame, stragglers: list[int]) -> pd.DataFrame:
    """The same of each parallel group that the labels of the ranks name: group ("pp"), place."""
    pandas = require("pandas", PURPOSE)
    parts = []
    for name in (column for column in ranks.columns if column in GROUPS):
        part = host_table(ranks.assign(host=ranks[name]).dropna(subset=["host"]), stragglers)
        parts.append(part.rename(columns={"host": "place"}).assign(group=name))
    if not parts:
        return host_table(ranks.iloc[:0], []).rename(columns={"host": "place"}).assign(group="")
    table: pd.DataFrame = pandas.concat(parts, ignore_index=True)
    return table


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
