"""The run as matrices: a row a rank, a column a step, one matrix a stage and quantity."""

from __future__ import annotations

import warnings
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from .cells import Cells

__all__ = ["Grid", "Integers", "Matrix", "middle_of", "quantile_of", "scatter_of"]

Matrix: TypeAlias = npt.NDArray[np.float64]
Integers: TypeAlias = npt.NDArray[np.int64]

MAD_TO_SIGMA = 1.4826


class Grid:
    """What the analyses read. Times are ns since the first stage of the run: exact in a float64 for
    a hundred days.

    ranks, steps: sorted. peers: of each rank the number of the group that does the same work
    (a pipeline stage); ranks are compared within it.
    """

    def __init__(self, cells: Cells, peers: dict[int, int], warmup: int | None) -> None:
        self._cells = cells
        self.paths = cells.names()
        self.ranks: Integers = self._column("SELECT DISTINCT rank FROM cells ORDER BY 1")
        self.steps: Integers = self._column("SELECT DISTINCT step FROM cells ORDER BY 1")
        self.peers = np.array([peers.get(int(rank), 0) for rank in self.ranks])
        start = self._column("SELECT coalesce(min(begin_ns), 0) FROM cells")
        self.start_ns = int(start[0])
        self.begins, self.ends = self._whole_steps()
        self.warmup = _warmup_of(self.step_ns()) if warmup is None else min(warmup, len(self.steps))

    def _column(self, sql: str) -> Any:
        return self._cells.query(sql).iloc[:, 0].to_numpy("i8")

    def _whole_steps(self) -> tuple[Matrix, Matrix]:
        frame = self._cells.query(
            "SELECT rank, step, min(begin_ns) - $start AS begin_ns, max(end_ns) - $start AS end_ns "
            "FROM cells GROUP BY rank, step",
            start=self.start_ns,
        )
        begins, ends = self._matrices(frame, ("begin_ns", "end_ns"))
        return begins, ends

    def step_ns(self) -> Matrix:
        """From the first begin to the last end of each step on each rank; NaN where it has none."""
        return self.ends - self.begins

    def of(self, path: int, *columns: str) -> list[Matrix]:
        """The matrices of a stage; NaN where a rank did not have it in a step."""
        since = [
            f"({name} - {self.start_ns}) AS {name}" if name in _MOMENTS else name
            for name in columns
        ]
        frame = self._cells.query(
            f"SELECT rank, step, {', '.join(since)} FROM cells WHERE path = $path", path=path
        )
        return self._matrices(frame, columns)

    def _matrices(self, frame: Any, columns: tuple[str, ...]) -> list[Matrix]:
        rows = np.searchsorted(self.ranks, frame["rank"].to_numpy())
        places = np.searchsorted(self.steps, frame["step"].to_numpy())
        found = []
        for name in columns:
            matrix = np.full((len(self.ranks), len(self.steps)), np.nan)
            matrix[rows, places] = frame[name].to_numpy()
            found.append(matrix)
        return found

    def over_peers(self, matrix: Matrix) -> Matrix:
        """The matrix less the median of a rank's peers in the same step."""
        result = matrix.copy()
        for group in np.unique(self.peers):
            rows = self.peers == group
            result[rows] -= middle_of(matrix[rows], 0)
        return result


_MOMENTS = {"begin_ns", "last_begin_ns", "end_ns"}


def middle_of(values: Any, axis: int | None = None) -> Any:
    """The median along an axis without NaNs; NaN where nothing is left."""
    return quantile_of(values, 0.5, axis)


def quantile_of(values: Any, share: float, axis: int | None = None) -> Any:
    """The same for any quantile."""
    if np.size(values) and not np.isnan(values).any():
        return np.quantile(values, share, axis=axis)  # many times faster
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # of slices that hold only NaNs
        return np.nanquantile(values, share, axis=axis)


def scatter_of(values: Any, axis: int) -> Any:
    """The standard deviation along an axis as the median deviation tells it, blind to outliers."""
    return MAD_TO_SIGMA * middle_of(
        np.abs(values - np.expand_dims(middle_of(values, axis), axis)), axis
    )


def _warmup_of(step_ns: Matrix) -> int:
    """The steps at the beginning that take longer than the others: compilation, caches, allocators.

    At most a quarter of the run. One is long that lies 20 % and five times the scatter above the
    median of all.
    """
    series = middle_of(step_ns, 0)
    if len(series) < 8:
        return 0
    middle = float(middle_of(series))
    limit = middle + max(0.2 * middle, 5 * float(scatter_of(series[None, :], 1)[0]))
    count = 0
    while count < len(series) // 4 and not series[count] <= limit:
        count += 1
    return count
