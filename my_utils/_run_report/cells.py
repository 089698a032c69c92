"""A run reduced to cells: what a stage took in one step on one rank. In DuckDB, out of core.

What some ranks were reduced to can be joined with that of others by appending, wherever it was
made: `partial` and `absorb`.

Tables of the database:

    cells      rank, step, path, count, total_ns, self_ns, begin_ns (of the first), last_begin_ns,
               end_ns (of the last); one row a stage of a step on a rank
    durations  rank, path, bucket, count, max_ns: of single stages, in buckets of 2^(1/64)
    paths      path (its number), name ("iter/forward"), parent (a path or NULL)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from .._tables import needed
from .ranks import PURPOSE, SEPARATOR, Columns, RankStages

if TYPE_CHECKING:
    import duckdb
    import pandas as pd

__all__ = ["BUCKETS_AN_OCTAVE", "Cells"]

BUCKETS_AN_OCTAVE = 64

_TABLES = """
CREATE TABLE cells (
    rank INTEGER, step BIGINT, path INTEGER, count INTEGER, total_ns BIGINT, self_ns BIGINT,
    begin_ns BIGINT, last_begin_ns BIGINT, end_ns BIGINT);
CREATE TABLE durations (rank INTEGER, path INTEGER, bucket INTEGER, count BIGINT, max_ns BIGINT);
CREATE TABLE paths (path INTEGER, name VARCHAR, parent INTEGER);
"""

# Of a step that was done again after a restart the last attempt counts.
_KEPT = """
CREATE OR REPLACE TEMP VIEW kept AS
SELECT * FROM stages WHERE step >= {first} AND step < {last}
QUALIFY attempt = max(attempt) OVER (PARTITION BY rank, step);
"""
_KEPT_OF_ONE_ATTEMPT = """
CREATE OR REPLACE TEMP VIEW kept AS
SELECT * FROM stages WHERE step >= {first} AND step < {last};
"""

_CELLS = """
INSERT INTO cells
WITH sums AS (
    SELECT rank, step, path, count(*) AS count, sum(end_ns - begin_ns)::BIGINT AS total_ns,
           min(begin_ns) AS begin_ns, max(begin_ns) AS last_begin_ns, max(end_ns) AS end_ns
    FROM kept GROUP BY ALL),
inner_sums AS (
    SELECT s.rank, s.step, p.parent AS path, sum(s.total_ns)::BIGINT AS inner_ns
    FROM sums s JOIN paths p USING (path) WHERE p.parent IS NOT NULL GROUP BY ALL)
SELECT rank, step, path, count, total_ns,
       greatest(total_ns - coalesce(inner_ns, 0), 0), begin_ns, last_begin_ns, end_ns
FROM sums LEFT JOIN inner_sums USING (rank, step, path);
"""

_DURATIONS = f"""
INSERT INTO durations
SELECT rank, path, floor(log2(greatest(end_ns - begin_ns, 1)) * {BUCKETS_AN_OCTAVE}), count(*),
       max(end_ns - begin_ns)
FROM kept GROUP BY ALL;
"""


class Cells:
    """The database of a run. One thread at a time.

    memory_limit: of DuckDB, as it writes it ("256MB"). folder: for what does not fit; a temporary
    one by default.
    """

    def __init__(self, memory_limit: str = "256MB", folder: str | None = None) -> None:
        module = needed("duckdb", PURPOSE, "report")
        config = {"memory_limit": memory_limit, "preserve_insertion_order": False}
        if folder is not None:
            config["temp_directory"] = folder
        self.connection: duckdb.DuckDBPyConnection = module.connect(":memory:", config=config)
        self.connection.execute(_TABLES)
        self._paths: dict[str, int] = {}

    def close(self) -> None:
        self.connection.close()

    def add(self, ranks: Sequence[RankStages], steps: tuple[int, int]) -> None:
        """Adds the cells of some ranks; steps is a half-open range. Many at once are quicker."""
        parts = [self._numbered(rank) for rank in ranks]
        stages = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
        several = any(rank.facts.attempts > 1 for rank in ranks)
        kept = _KEPT if several else _KEPT_OF_ONE_ATTEMPT
        self.connection.register("stages", stages)
        self.connection.execute(kept.format(first=steps[0], last=steps[1]))
        for statement in (_CELLS, _DURATIONS):
            self.connection.execute(statement)
        self.connection.execute("DROP VIEW kept")
        self.connection.unregister("stages")

    def _numbered(self, rank: RankStages) -> Columns:
        """The stages of a rank with its number, and the run's numbers of its paths."""
        numbers = np.array(self._numbers(rank.paths), "i4")
        columns = {name: rank.stages[name] for name in ("step", "begin_ns", "end_ns", "attempt")}
        columns["path"] = numbers[rank.stages["path"]]
        columns["rank"] = np.full(len(columns["path"]), rank.facts.rank, "i4")
        return columns

    def _numbers(self, names: Sequence[str]) -> list[int]:
        """The run's numbers of paths, parents before their children."""
        rows = []
        for name in names:
            if name in self._paths:
                continue
            number = self._paths[name] = len(self._paths)
            rows.append((number, name, self._paths.get(name.rpartition(SEPARATOR)[0])))
        if rows:
            self.connection.executemany("INSERT INTO paths VALUES (?, ?, ?)", rows)
        return [self._paths[name] for name in names]

    def partial(self) -> dict[str, pd.DataFrame]:
        """All that was added, to be absorbed by the cells of a larger part of the run."""
        return {
            name: self.query(f"SELECT * FROM {name}") for name in ("paths", "cells", "durations")
        }

    def absorb(self, partial: dict[str, pd.DataFrame]) -> None:
        """Adds what other ranks were reduced to."""
        paths = partial["paths"].sort_values("path")
        numbers = np.array(self._numbers(list(paths["name"])), "i4")
        for table in ("cells", "durations"):
            frame = partial[table]
            frame = frame.assign(path=numbers[frame["path"].to_numpy()])
            self.connection.register("part", frame)
            self.connection.execute(f"INSERT INTO {table} BY NAME SELECT * FROM part")
            self.connection.unregister("part")

    def query(self, sql: str, **values: Any) -> pd.DataFrame:
        """The rows of a query as a DataFrame."""
        needed("pandas", PURPOSE, "report")
        return self.connection.execute(sql, values or None).df()

    def columns(self, sql: str, **values: Any) -> Columns:
        """The same as arrays, which is quicker; the query has no NULLs."""
        columns: Columns = self.connection.execute(sql, values or None).fetchnumpy()
        return columns

    def leave_out(self, rank: int) -> None:
        for table in ("cells", "durations"):
            self.connection.execute(f"DELETE FROM {table} WHERE rank = $rank", {"rank": rank})

    def names(self) -> dict[int, str]:
        """The names of the paths that have cells, by their numbers, in the order of the names."""
        frame = self.query(
            "SELECT path, name FROM paths WHERE path IN (SELECT path FROM cells) ORDER BY name"
        )
        return dict(zip(frame["path"].tolist(), frame["name"].tolist(), strict=True))
