"""The run as matrices: a row a rank, a column a step, one matrix a stage and quantity."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from ..verdict.quantiles import middle_of, scatter_of
from ..verdict.rank_files import Columns
from .cells import Cells

__all__ = ["Grid", "Integers", "Matrix"]

Matrix: TypeAlias = npt.NDArray[np.float64]
Integers: TypeAlias = npt.NDArray[np.int64]

KEPT_CELLS = 2_000_000  # of a quantity that are in memory at once; 80 MB for all five

QUANTITIES = ("total_ns", "self_ns", "begin_ns", "last_begin_ns", "end_ns")

_OF_ALL = """
SELECT path, rank, step, total_ns, self_ns, begin_ns - $start AS begin_ns,
       last_begin_ns - $start AS last_begin_ns, end_ns - $start AS end_ns
FROM cells
"""
_OF_A_PATH = f"{_OF_ALL} WHERE path = $path"
_OF_WHOLE_STEPS = """
SELECT 0 AS path, rank, step, min(begin_ns) AS begin_ns, max(end_ns) AS end_ns
FROM cells GROUP BY rank, step
"""


class Grid:
    """What the analyses read. Times are ns since the first stage of the run: exact in a float64 for
    a hundred days.

    ranks, steps: sorted. peers: of each rank the number of the group that does the same work
    (a pipeline stage); ranks are compared within it.
    """

    def __init__(self, cells: Cells, peers: dict[int, int], warmup: int | None) -> None:
        self._cells = cells
        self._read: dict[int, dict[str, Matrix]] = {}  # of the paths read lately
        self.paths = cells.names()
        whole = cells.columns(_OF_WHOLE_STEPS)
        self.ranks: Integers = np.unique(whole["rank"]).astype("i8")
        self.steps: Integers = np.unique(whole["step"])
        self.peers = np.array([peers[rank] for rank in self.ranks.tolist()])
        self._start_ns = int(whole["begin_ns"].min(initial=np.iinfo("i8").max))
        for name in ("begin_ns", "end_ns"):
            whole[name] = whole[name] - self._start_ns
        (self.begins,), (self.ends,) = self._matrices(whole, ("begin_ns", "end_ns"), [0])
        self.warmup = _warmup_of(self.step_ns()) if warmup is None else min(warmup, len(self.steps))

    def step_ns(self) -> Matrix:
        """From the first begin to the last end of each step on each rank; NaN where it has none."""
        took: Matrix = self.ends - self.begins
        return took

    def last_steps(self) -> Integers:
        """The last step of each rank."""
        last = np.where(np.isfinite(self.ends), np.arange(len(self.steps)), 0).max(1, initial=0)
        steps: Integers = self.steps[last]
        return steps

    def middle_step_ns(self) -> float:
        """The median of what a step took a rank, without the warm-up; NaN where that is all."""
        return float(middle_of(self.step_ns()[:, self.warmup :]))

    def busy_ns(self, sync: list[int]) -> Matrix:
        """The same without the stages in which ranks wait."""
        busy = self.step_ns()
        for path in sync:
            busy -= np.nan_to_num(self.of(path, "total_ns")[0])
        return busy

    def of(self, path: int, *columns: str) -> list[Matrix]:
        """The matrices of a stage; NaN where a rank did not have it in a step. To be read only."""
        if path not in self._read:
            self._read_in(path)
        return [self._read[path][name] for name in columns]

    def _read_in(self, path: int) -> None:
        """All stages at once where they fit, which is much quicker than one after another."""
        size = len(self.ranks) * len(self.steps)
        if len(self.paths) * size <= KEPT_CELLS:
            self._keep(sorted(self.paths), self._cells.columns(_OF_ALL, start=self._start_ns))
            return
        if len(self._read) * size > KEPT_CELLS:
            self._read.clear()
        self._keep([path], self._cells.columns(_OF_A_PATH, start=self._start_ns, path=path))

    def _keep(self, paths: list[int], cells: Columns) -> None:
        stacks = self._matrices(cells, QUANTITIES, paths)
        for number, path in enumerate(paths):
            self._read[path] = dict(zip(QUANTITIES, stacks[:, number], strict=True))

    def _matrices(self, cells: Columns, columns: Sequence[str], paths: list[int]) -> Matrix:
        """Of each column a matrix a path, all in one array, which is large enough for huge pages.
        `cells` is used up: columns go once they are read."""
        places = np.searchsorted(paths, cells.pop("path"))
        places *= len(self.ranks)
        places += np.searchsorted(self.ranks, cells.pop("rank"))
        places *= len(self.steps)
        places += np.searchsorted(self.steps, cells.pop("step"))
        found = np.full((len(columns), len(paths), len(self.ranks), len(self.steps)), np.nan)
        for name, stack in zip(columns, found, strict=True):
            stack.ravel()[places] = cells.pop(name)
        found.flags.writeable = False
        return found

    def over_peers(self, matrix: Matrix) -> Matrix:
        """The matrix less the median of a rank's peers in the same step."""
        result = matrix.copy()
        for group in np.unique(self.peers):
            rows = self.peers == group
            result[rows] -= middle_of(matrix[rows], 0)
        return result


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
