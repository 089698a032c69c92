"""The tables of the report: steps, waits, ranks, hosts and parallel groups."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ... import _core
from ...core.extras import require
from ..verdict.quantiles import median, quantile_of
from ..verdict.rank_files import GROUPS, RankMetadata
from ..verdict.run_data import Integers, RunData
from ..verdict.sync import Meetings
from ..verdict.waits import NOBODY
from .cells import Cells, RankOfCells
from .load import PURPOSE, last_steps
from .waits import Meeting, RunWaits, busy_ns

if TYPE_CHECKING:
    import pandas as pd


WAIT_COLUMNS = {
    "step": "int64", "sync": "object", "rank": "int64", "late_ms": "float64", "cost_s": "float64",
    "stage": "object", "lost_ms": "float64",
}  # fmt: skip


def wait_table(run: RunData, waits: RunWaits, rows: Integers) -> pd.DataFrame:
    """A row a step and group of ranks that met in a stage, of groups that have one of these."""
    pandas = require("pandas", PURPOSE)
    groups = (one for one in waits.meetings if np.isin(one.rows, rows).any())
    parts = [_waits_in(run, one) for one in groups]
    if not parts:
        return pandas.DataFrame(columns=list(WAIT_COLUMNS)).astype(WAIT_COLUMNS)
    table: pd.DataFrame = pandas.concat(parts, ignore_index=True)
    order = {name: place for place, name in enumerate(waits.stages)}
    return table.sort_values(
        ["step", "sync"], ignore_index=True, kind="stable",
        key=lambda column: column.map(order) if column.name == "sync" else column,
    )  # fmt: skip


def _waits_in(run: RunData, meeting: Meeting) -> pd.DataFrame:
    pandas = require("pandas", PURPOSE)
    at = np.flatnonzero(meeting.last != NOBODY)
    lost: list[int] = meeting.lost_stage[at].tolist()
    table: pd.DataFrame = pandas.DataFrame(
        {
            "step": run.steps[at],
            "sync": run.stages[meeting.stage],
            "rank": run.ranks[meeting.last[at]],
            "late_ms": meeting.late_ns[at] * 1e-6,
            "cost_s": meeting.cost_ns[at] * 1e-9,
            "stage": [None if stage == NOBODY else run.stages[stage] for stage in lost],
            "lost_ms": meeting.lost_ns[at] * 1e-6,
        }
    )
    return table


def step_table(
    run: RunData, meetings: Meetings, waits: pd.DataFrame, rows: Integers
) -> pd.DataFrame:
    """A row a step: how long it took the ranks in these rows, and whom they waited for longest."""
    pandas = require("pandas", PURPOSE)
    took, busy = run.step_ns[rows] * 1e-6, busy_ns(run, meetings)[rows] * 1e-6
    known = np.where(np.isfinite(busy), busy, -np.inf)
    table = pandas.DataFrame(
        {
            "step": run.steps,
            "median_ms": median(took, 0),
            "busy_ms": median(busy, 0),
            "busy_low_ms": quantile_of(busy, 0.1, 0),
            "busy_high_ms": quantile_of(busy, 0.9, 0),
            "busy_max_ms": known.max(0),
            "busiest_rank": run.ranks[rows][known.argmax(0)],
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
    run: RunData, waits: RunWaits, warmup: int, metadata: dict[int, RankMetadata]
) -> pd.DataFrame:
    """A row a rank: its host and groups, its step time, its waits, and the others' waits for it."""
    pandas = require("pandas", PURPOSE)
    cost = np.zeros(len(run.ranks))
    for meeting in waits.meetings:
        at = meeting.last != NOBODY
        np.add.at(cost, meeting.last[at], meeting.cost_ns[at])
    known = [metadata[rank] for rank in run.ranks.tolist()]
    places = [one.groups for one in known]
    columns: dict[str, Any] = {"rank": run.ranks, "host": [one.host for one in known]}
    for name in sorted(set().union(*places)):
        columns[name] = pandas.array([of_rank.get(name) for of_rank in places], "Int64")
    columns |= {
        "step_ms": median(run.step_ns[:, warmup:], 1) * 1e-6,
        "waited_s": waits.waited_ns.sum(1) * 1e-9,
        "cost_s": cost * 1e-9,
        "last_step": last_steps(run),
    }
    for name in ("rows", "bad_rows", "dropped", "open", "attempts"):
        columns[name] = [getattr(one, name) for one in known]
    errors = [np.nan if one.clock_error_s is None else one.clock_error_s for one in known]
    columns["clock_error_s"] = errors
    table: pd.DataFrame = pandas.DataFrame(columns)
    return table


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


def stage_table(cells: Cells, waits: RunWaits) -> pd.DataFrame:
    """A row a stage.

    stage; count of single runs; total_s and self_s (without the stages inside) of all ranks; mean,
    p50, p99 and max of a single run in ms; step_mean_ms and step_std_ms of what it takes a rank in
    a step; imbalance: how much longer than the mean of the ranks the slowest_rank took, a fraction;
    critical_s and critical_share: of it on the critical path of the steps, without the warm-up;
    synchronises: ranks wait in it.
    """
    pandas = require("pandas", PURPOSE)
    durations, names = cells.durations(), cells.names()
    rows = [_figures(cells, path, name, *durations[path]) for path, name in names.items()]
    table = pandas.DataFrame(rows)
    critical: Any = np.array([waits.critical_ns.get(name, 0.0) for name in names.values()])
    table["critical_s"] = critical * 1e-9
    table["critical_share"] = critical / (critical.sum() or 1.0)
    table["synchronises"] = [name in waits.stages for name in names.values()]
    return table


def _figures(
    cells: Cells, path: int, name: str, counts: Integers, longest_ns: int
) -> dict[str, Any]:
    """The columns of a stage that need no other stage. counts: of each bucket."""
    having = [one for one in cells.of_ranks.values() if path in one.paths]
    totals = [one.values_of(path, "total_ns") for one in having]
    known = np.concatenate(totals)
    of_ranks = np.array([own.sum() for own in totals], np.float64)
    count = int(counts.sum())
    longest_ms = longest_ns * 1e-6
    return {
        "stage": name,
        "count": count,
        "total_s": known.sum() * 1e-9,
        "self_s": sum(int(one.values_of(path, "self_ns").sum()) for one in having) * 1e-9,
        "mean_ms": known.sum() / count * 1e-6,
        "p50_ms": min(_percentile_ms(counts, 0.5), longest_ms),
        "p99_ms": min(_percentile_ms(counts, 0.99), longest_ms),
        "max_ms": longest_ms,
        "step_mean_ms": known.mean() * 1e-6,
        "step_std_ms": known.std(ddof=1) * 1e-6 if len(known) > 1 else np.nan,
        "imbalance": of_ranks.max() / of_ranks.mean() - 1 if of_ranks.any() else np.nan,
        "slowest_rank": having[int(of_ranks.argmax())].rank,
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
