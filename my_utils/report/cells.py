"""A run reduced to cells: what a stage took in one step on one rank. In DuckDB, out of core.

Tables of the database:

    cells      rank, step, path, count, total_ns, self_ns, begin_ns (of the first), last_begin_ns,
               end_ns (of the last); one row a stage of a step on a rank
    durations  rank, path, bucket, count, max_ns: of single stages, in the buckets of the engine
    paths      path (its number), name ("iter/forward")
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ..common.tables import needed
from ..verdict.rank_files import Columns
from ..verdict.reduce import ReducedRank
from .purpose import PURPOSE

if TYPE_CHECKING:
    import duckdb
    import pandas as pd

__all__ = ["Cells", "python_errors"]

_TABLES = """
CREATE TABLE cells (
    rank INTEGER, step BIGINT, path INTEGER, count INTEGER, total_ns BIGINT, self_ns BIGINT,
    begin_ns BIGINT, last_begin_ns BIGINT, end_ns BIGINT);
CREATE TABLE durations (rank INTEGER, path INTEGER, bucket INTEGER, count BIGINT, max_ns BIGINT);
CREATE TABLE paths (path INTEGER, name VARCHAR);
"""


class Cells:
    """The database of a run. One thread at a time.

    memory_limit: of DuckDB, as it writes it ("256MB"); what does not fit goes to a temporary folder
    until `close`.
    """

    def __init__(self, memory_limit: str = "256MB") -> None:
        module = needed("duckdb", PURPOSE, "report")
        config = {"memory_limit": memory_limit, "preserve_insertion_order": False}
        try:
            self.connection: duckdb.DuckDBPyConnection = module.connect(":memory:", config=config)
        except module.ParserException as error:
            raise ValueError(
                f"memory_limit must be such as '256MB', not {memory_limit!r}: {error}"
            ) from None
        self.connection.execute(_TABLES)
        self._paths: dict[str, int] = {}
        self._folder = tempfile.TemporaryDirectory(prefix="my_utils_report.")
        self.connection.execute(
            "SET temp_directory = $folder", {"folder": os.path.join(self._folder.name, "spilled")}
        )

    def close(self) -> None:
        self.connection.close()
        self._folder.cleanup()

    def add(self, ranks: Sequence[ReducedRank]) -> None:
        """Adds some ranks; many at once are quicker."""
        for table in ("cells", "durations"):
            parts = [self._numbered(rank, getattr(rank, table)) for rank in ranks]
            # In one array, which is large enough for huge pages where columns are not.
            columns = np.empty((len(parts[0]), sum(len(part["path"]) for part in parts)), "i8")
            rows = dict(zip(parts[0], columns, strict=True))
            for name, column in rows.items():
                np.concatenate([part[name] for part in parts], out=column)
            self.connection.register("part", rows)
            self.connection.execute(f"INSERT INTO {table} BY NAME SELECT * FROM part")
            self.connection.unregister("part")

    def _numbered(self, rank: ReducedRank, columns: Columns) -> Columns:
        """With the rank's number, and the run's numbers of its paths."""
        numbers = np.array(self._numbers(rank.paths))
        ranks = np.full(len(columns["path"]), rank.metadata.rank)
        return {**columns, "path": numbers[columns["path"]], "rank": ranks}

    def _numbers(self, names: Sequence[str]) -> list[int]:
        """The run's numbers of paths."""
        rows = []
        for name in names:
            if name in self._paths:
                continue
            number = self._paths[name] = len(self._paths)
            rows.append((number, name))
        if rows:
            self.connection.executemany("INSERT INTO paths VALUES (?, ?)", rows)
        return [self._paths[name] for name in names]

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
        return dict(
            self.connection.execute(
                "SELECT path, name FROM paths SEMI JOIN durations USING (path) ORDER BY name"
            ).fetchall()
        )


@contextlib.contextmanager
def python_errors() -> Iterator[None]:
    """DuckDB's errors as Python's: too little memory as MemoryError, files as OSError."""
    module = needed("duckdb", PURPOSE, "report")
    try:
        yield
    except module.OutOfMemoryException as error:
        raise MemoryError(str(error).partition("\n")[0]) from error
    except module.IOException as error:
        raise OSError(str(error)) from error
