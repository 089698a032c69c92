"""The tables of hosts and groups, against those that pandas' own groups give."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("pandas", reason="pandas is not installed")

import pandas

from my_utils.analysis.report.tables import group_table, host_table

pytestmark = pytest.mark.no_torch

SLOW = [1, 3, 9]


def ranks(count: int) -> pandas.DataFrame:
    rng = np.random.default_rng(1)
    step_ms = rng.random(count)
    step_ms[::7] = np.nan  # of ranks without a whole step
    places = [None if rank % 5 == 0 else rank % 3 for rank in range(count)]
    return pandas.DataFrame(
        {
            "rank": np.arange(count),
            "host": [f"node-{rank // 4}" for rank in range(count)],
            "pp": pandas.array(places, "Int64"),
            "step_ms": step_ms,
            "waited_s": rng.random(count),
            "cost_s": rng.random(count),
        }
    )


def by_pandas(table: pandas.DataFrame, key: str) -> pandas.DataFrame:
    slow = table.assign(slow=table["rank"].isin(SLOW)).dropna(subset=[key])
    return slow.groupby(key, as_index=False).agg(
        ranks=("rank", "size"), stragglers=("slow", "sum"), step_ms=("step_ms", "median"),
        waited_s=("waited_s", "sum"), cost_s=("cost_s", "sum"),
    )  # fmt: skip


@pytest.mark.parametrize("count", [1, 22])
def test_hosts(count: int) -> None:
    table = ranks(count)
    pandas.testing.assert_frame_equal(host_table(table, SLOW), by_pandas(table, "host"))


def test_groups_leave_out_ranks_without_a_place() -> None:
    table = ranks(22)
    expected = by_pandas(table, "pp").rename(columns={"pp": "place"}).assign(group="pp")
    pandas.testing.assert_frame_equal(group_table(table, SLOW), expected)


def test_no_groups_have_the_columns() -> None:
    table = group_table(ranks(4).drop(columns="pp"), SLOW)
    columns = ["place", "ranks", "stragglers", "step_ms", "waited_s", "cost_s", "group"]
    assert (list(table.columns), len(table)) == (columns, 0)
