"""The tables of the report: steps, waits, ranks, hosts and parallel groups."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ...core.extras import require
from ..verdict.quantiles import median, quantile_of
from ..verdict.rank_files import GROUPS, RankMetadata
from .grid import Grid, Matrix
from .purpose import PURPOSE
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
